"""The few rules that are applied without a search, each valid wherever its left side has a value.

Both sides have a value at the same points, infinite ones included if the left side has one there, and the right side is
nowhere less accurate, up to the errors of a kernel: docs/numerics.md has a measurement of each. Most come from the
search's table (`rules`). The others would not help the search, which finds them by smaller steps, or would mislead it:
0 − a is +0 at both zeros, as 1 − eᵃ is, and −a is not.
"""

from __future__ import annotations

from functools import cache

from pullback.stable.rewrite import Rule, read

_TAKEN = """
    exp(a) - 1 => expm1(a)
    log(1 + a) => log1p(a)
    log(1 - a) => log1p(-a)
    1 / (1 + exp(a)) => sigmoid(-a)
    exp(a) / (1 + exp(a)) => sigmoid(a)
    1 - sigmoid(a) => sigmoid(-a)
    log(sigmoid(a)) => -softplus(-a)
    log1p(exp(a)) => softplus(a)
    exp(-softplus(a)) => sigmoid(-a)
    rsqrt(1 + exp(a)) => exp(softplus(a) * -0.5)
    sqrt(1 + exp(a)) => exp(softplus(a) * 0.5)
    sigmoid(a) - 0.5 => 0.5 * tanh(a * 0.5)
    1 - tanh(a) => 2 * sigmoid(-2 * a)
    1 + tanh(a) => 2 * sigmoid(2 * a)
    exp(a) + exp(-a) => 2 * cosh(a)
    exp(a) - exp(-a) => 2 * sinh(a)
    sinh(a) / cosh(a) => tanh(a)
    0.5 * log((1 + a) / (1 - a)) => atanh(a)
    log(a + hypot(1, a)) => asinh(a)
    sqrt(1 + a * a) => hypot(1, a)
    sqrt(a * a + b * b) => hypot(a, b)
    1 + erf(a) => erfc(-a)
    1 - erf(a) => erfc(a)
"""

_OWN = """
    1 - exp(a) => 0 - expm1(a)
    log1p(-exp(a)) => log(0 - expm1(a))
    a / (1 + exp(b)) => a * sigmoid(-b)
    exp(a) / (exp(a) + exp(b)) => sigmoid(a - b)
    2 * sigmoid(a) - 1 => tanh(a * 0.5)
    sigmoid(-a) - sigmoid(a) => -tanh(a * 0.5)
    1 - (1 - tanh(a) * tanh(a)) => tanh(a) * tanh(a)
    1 - tanh(softplus(a)) * tanh(softplus(a)) => (2 * sigmoid(-a) / (1 + sigmoid(-a) * sigmoid(-a))) ** 2
    a * (b * a) - (b * a) * b => (b * a) * (a - b)
    (2 * sinh(a)) / (2 * cosh(a)) => tanh(a)
    expm1(a) / (1 + exp(a)) => tanh(a * 0.5)
    (2 * a) / 2 => a
    0.5 * (2 * a) => a
    sqrt(1 + a) - sqrt(a) => 1 / (sqrt(1 + a) + sqrt(a))
"""

_LAST = """
    1 - tanh(a) * tanh(a) => 1 / (cosh(a) * cosh(a))
    1 - a * a => (1 - a) * (1 + a)
    a * a - 1 => (a - 1) * (a + 1)
    a * a - b * b => (a - b) * (a + b)
    1 - cos(a) => 2 * (sin(a * 0.5) * sin(a * 0.5))
    cos(a) - 1 => -2 * (sin(a * 0.5) * sin(a * 0.5))
"""

_LAST_OWN = """
    exp(softplus(a) * -0.5) => exp(relu(a) * -0.5) * sqrt(sigmoid(abs(a)))
    exp(softplus(a) * 0.5) => exp(relu(a) * 0.5) * sqrt(1 + exp(-abs(a)))
    log(0 - expm1(a)) => where(a > -LN2, log(0 - expm1(a)), log1p(-exp(a)))
    sqrt(1 + a) - 1 => where(a < 1, a / (sqrt(1 + a) + 1), sqrt(1 + a) - 1)
    log(exp(a) + exp(b)) => where(a == b, a + LN2, maximum(a, b) + log1p(exp(-abs(a - b))))
"""

_WIDE = """
    tanh(softplus(a)) => sigmoid(a) * (1 + sigmoid(-a)) / (1 + sigmoid(-a) * sigmoid(-a))
    exp(softplus(a) * -0.5) => sqrt(sigmoid(-a))
"""

STEEP = frozenset({"sigmoid", "tanh", "expm1", "asinh", "acosh", "atanh", "asin", "acos"})
"""Ops whose derivative autograd computes from the rounded result, or from a square, and `ops` by another formula."""


@cache
def taken() -> tuple[Rule, ...]:
    """Return the rules that the search has too."""
    return (*read(_TAKEN), *read(_LAST))


@cache
def first() -> tuple[Rule, ...]:
    """Return the rules whose results are also good to differentiate."""
    return (*read(_TAKEN), *read(_OWN))


@cache
def last() -> tuple[Rule, ...]:
    """Return the rules for terms that are not differentiated further; their results are not rewritten again."""
    return (*read(_LAST), *read(_LAST_OWN))


@cache
def wide() -> tuple[Rule, ...]:
    """Return those that hold the range of float32 only in float64."""
    return tuple(read(_WIDE))


@cache
def last_in_float64() -> tuple[Rule, ...]:
    """Return the rules for such terms that are computed in float64 in place of a narrower dtype."""
    return (*wide(), *(rule for rule in last() if rule.left not in {other.left for other in wide()}))
