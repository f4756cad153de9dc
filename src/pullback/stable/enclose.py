"""Terms at many points at once, in float64, with bounds: intervals that hold the exact values.

PyTorch's float64 kernels are taken to be within 2⁻⁴⁸ of the exact value, relatively (16 ulp; `trigamma` 2⁻³⁰; `lgamma`
and `digamma`, which have roots, by as much absolutely). That is an assumption: whoever uses these bounds tests them
against the oracle at some of the points. Nothing else is assumed: where a value overflows, cancels or cannot be
bounded, the interval is wide, or the whole line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from pullback.errors import FormulaError
from pullback.stable import primitives
from pullback.stable.conditions import CHOICES
from pullback.stable.intervals import (
    KERNEL,
    ROUNDING,
    Condition,
    Interval,
    Rule,
    absolute,
    around,
    blanked,
    centre,
    corners,
    either,
    exact_rule,
    exactly,
    monotone,
)
from pullback.stable.ops import VALUES
from pullback.stable.term import CONST, NAMED, VAR, Term, topological


def enclose(roots: Sequence[Term], points: Mapping[str, Tensor]) -> list[Interval]:
    """Return intervals that hold the values of terms.

    Args:
        roots: the terms.
        points: the values of every variable, float64.

    Raises:
        FormulaError: for a polynomial, which is an approximation, and for a condition.
    """
    found: dict[Term, Interval | Condition] = {}
    for term in topological(roots):
        if term.op == VAR:
            found[term] = exactly(points[term.value])
        elif term.op in (CONST, NAMED):
            found[term] = _constant(term)
        elif term.op in RULES:
            found[term] = RULES[term.op](*(found[a] for a in term.args))
        else:
            raise FormulaError(f"there are no float64 bounds for {term.op}")
    intervals = [found[root] for root in roots]
    like = next(iter(points.values()))
    return [_sized(interval, like) for interval in intervals]


_LONG = 2**36
"""Constants with a larger denominator may be products of others that were rounded, by a search."""


def _constant(term: Term) -> Interval:
    value = VALUES[term.value] if term.op == NAMED else float(term.value)
    number = torch.tensor(value, dtype=torch.float64)
    if term.op == CONST and term.value.denominator > _LONG:
        return around(number, number, KERNEL)
    exact = term.op == CONST and term.value == value
    return exactly(number) if exact else around(number, number, ROUNDING)


def _sized(interval: Interval | Condition, like: Tensor) -> Interval:
    """Return an interval expanded to the size of the input: that of a term without variables has none."""
    if isinstance(interval, Condition):
        raise FormulaError("there are no bounds for a condition")
    undefined = interval.undefined
    undefined = None if undefined is None else undefined.expand_as(like)
    return Interval(interval.low.expand_as(like), interval.high.expand_as(like), undefined)


def has_bounds(root: Term) -> bool:
    """Whether there are bounds for a term: not for polynomials."""
    return all(term.op in RULES or term.op in (VAR, CONST, NAMED) for term in topological([root]))


def _even(rule: Rule) -> Rule:
    return lambda a: rule(absolute(a))


def _neg(a: Interval) -> Interval:
    return Interval(-a.high, -a.low, a.undefined)


def _add(a: Interval, b: Interval) -> Interval:
    return around(a.low + b.low, a.high + b.high, ROUNDING, 0.0, either(a.undefined, b.undefined))


def _mul(a: Interval, b: Interval) -> Interval:
    if a.low is a.high and b.low is b.high:
        product = a.low * b.low
        return around(product, product, ROUNDING, 0.0, either(a.undefined, b.undefined))
    return corners(torch.mul, a, b, ROUNDING)


def _div(a: Interval, b: Interval) -> Interval:
    return corners(torch.div, a, b, ROUNDING, (b.low > 0) | (b.high < 0))


def _hypot(a: Interval, b: Interval) -> Interval:
    a, b = absolute(a), absolute(b)
    undefined = either(a.undefined, b.undefined)
    return around(torch.hypot(a.low, b.low), torch.hypot(a.high, b.high), KERNEL, 0.0, undefined)


def _atan2(a: Interval, b: Interval) -> Interval:
    return corners(torch.atan2, a, b, KERNEL, (b.low > 0) | (a.low > 0) | (a.high < 0))


def _pow(a: Interval, b: Interval) -> Interval:
    whole = (b.low == b.high) & (b.low == b.low.round())
    valid = (a.low > 0) | ((a.low >= 0) & (b.low > 0)) | ((a.high < 0) & whole)
    size = corners(torch.pow, absolute(a), b, KERNEL, valid)
    flip = (a.high < 0) & whole & (torch.remainder(b.low, 2) == 1)
    undefined = either(size.undefined, (a.high < 0) & (b.low == b.high) & ~whole)
    low, high = torch.where(flip, -size.high, size.low), torch.where(flip, -size.low, size.high)
    return blanked(low, high, undefined)


def _wave(run: Callable[[Tensor], Tensor], slope: float = 1.0) -> Rule:
    """Return the rule of sin or cos: the slope is at most 1, or `slope`."""

    def rule(a: Interval) -> Interval:
        middle, radius = centre(a)
        value = run(middle)
        off = slope * radius + value.abs() * KERNEL
        low, high = torch.nan_to_num(value - off, nan=-1.0), torch.nan_to_num(value + off, nan=1.0)
        return around(low.clamp(-1, 1), high.clamp(-1, 1), ROUNDING, 0.0, a.undefined)

    return rule


def _tan(a: Interval) -> Interval:
    # |tan(m + r) − tan m| = |tan r (1 + tan² m) / (1 − tan m tan r)|
    middle, radius = centre(a)
    value = torch.tan(middle)
    near = radius * (1 + value.abs()) < 0.01
    off = torch.where(near, 1.03 * radius * (1 + value * value), torch.inf)
    return around(value - off, value + off, KERNEL, 0.0, a.undefined)


def _lgamma(a: Interval) -> Interval:
    middle, radius = centre(a)
    pole = (a.low == a.high) & (a.low <= 0) & (a.low == a.low.round())
    slope = torch.maximum(torch.digamma(a.low).abs(), torch.digamma(a.high).abs())
    off = torch.where(a.low > 0, 1.01 * radius * slope, torch.where(radius == 0, 0.0, torch.inf))
    value = torch.lgamma(middle)
    return around(value - off, value + off, KERNEL, KERNEL, either(a.undefined, pole))


def _where_positive(rule: Rule) -> Rule:
    """Return a rule that holds for positive numbers; for others it returns the whole line."""

    def positive(a: Interval) -> Interval:
        found = rule(a)
        line = torch.where(a.low > 0, 0.0, torch.inf)
        return Interval(found.low - line, found.high + line, found.undefined)

    return positive


_TRIGAMMA = 2.0**-30
"""PyTorch's kernel is 5e-10 off at 1: its series ends early."""

_GROWING = ("exp", "exp2", "expm1", "sigmoid", "atan", "sinh", "tanh", "asinh", "erf")

RULES: dict[str, Rule] = {
    "add": _add,
    "sub": lambda a, b: _add(a, _neg(b)),
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "abs": absolute,
    "hypot": _hypot,
    "pow": _pow,
    "atan2": _atan2,
    "sin": _wave(torch.sin),
    "cos": _wave(torch.cos),
    "tan": _tan,
    "sinpi": _wave(primitives.sinpi, 3.15),
    "cospi": _wave(primitives.cospi, 3.15),
    **{name: monotone(getattr(torch, name)) for name in _GROWING},
    "softplus": monotone(primitives.softplus),
    "erfc": monotone(torch.erfc, -1),
    "erfcx": monotone(torch.special.erfcx, -1),
    **{name: monotone(getattr(torch, name), outside=lambda a: a.high < 0) for name in ("log", "log2", "log10")},
    "log1p": monotone(torch.log1p, outside=lambda a: a.high < -1),
    "sqrt": monotone(torch.sqrt, outside=lambda a: a.high < 0),
    "rsqrt": monotone(torch.rsqrt, -1, outside=lambda a: a.high < 0),
    "acosh": monotone(torch.acosh, outside=lambda a: a.high < 1),
    **{name: monotone(getattr(torch, name), outside=lambda a: absolute(a).low > 1) for name in ("asin", "atanh")},
    "acos": monotone(torch.acos, -1, outside=lambda a: absolute(a).low > 1),
    "cosh": _even(monotone(torch.cosh)),
    "gauss": _even(monotone(primitives.gauss, -1)),
    "qgauss": _even(monotone(primitives.qgauss, -1)),
    "lgamma": _lgamma,
    "digamma": _where_positive(monotone(torch.digamma, absolute=KERNEL)),
    "trigamma": _where_positive(monotone(primitives.trigamma, -1, relative=_TRIGAMMA)),
    "relu": exact_rule(torch.relu),
    "sgn": exact_rule(torch.sgn),
    "floor": exact_rule(torch.floor),
    "ceil": exact_rule(torch.ceil),
    "maximum": exact_rule(torch.maximum),
    "minimum": exact_rule(torch.minimum),
    **CHOICES,
}
"""A rule for each op of the table."""
