"""The pointwise ops that the search knows: one row each, with PyTorch's kernel, the exact value and the derivative.

Names are ATen's where ATen has the op. The derivatives are those of the real functions, at kinks those of PyTorch;
their form matters little, since the search looks for a stable one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pullback.stable import balls, primitives
from pullback.stable.term import Term, parse


@dataclass(frozen=True, slots=True)
class Op:
    """A pointwise op.

    Attributes:
        run: on tensors.
        ball: on balls of `flint.arb` (on truth values for conditions), an enclosure of the exact value.
        cost: about how many additions it takes, fused.
        partials: the derivative by each operand, as terms in a, b, c; `None` if it is not a term of the table.
    """

    run: Callable[..., Any]
    ball: Callable[..., Any]
    cost: float
    partials: tuple[Term, ...] | None


EXPONENTIALS = {f"EXP{'_M' if n < 0 else '_'}{abs(n)}": n for n in range(-20, 21) if abs(n) > 1}
LOGARITHMS = {f"LN{n}": n for n in (3, 5, 7)}
ROOTS = {f"SQRT{n}": n for n in (3, 5, 6, 7, 10)}
"""Exponentials, logarithms and square roots of integers by name. Rounded to float64 they would move a removable hole:
(eˣ − e⁻⁴)/(x + 4) would have a pole at −4.
"""


def _of(n: int, function: str) -> Callable[[Any], Any]:
    return lambda arb: getattr(arb(n), function)()


CONSTANTS: dict[str, Callable[[Any], Any]] = {
    "LN2": lambda arb: arb(2).log(),
    "LN10": lambda arb: arb(10).log(),
    "PI": lambda arb: arb.pi(),
    "E": lambda arb: arb(1).exp(),
    "SQRT2": lambda arb: arb(2).sqrt(),
    "SQRT1_2": lambda arb: arb(2).rsqrt(),
    "INV_SQRT_2PI": lambda arb: (2 * arb.pi()).rsqrt(),
    "SQRT_2_OVER_PI": lambda arb: (2 / arb.pi()).sqrt(),
    "TWO_OVER_SQRTPI": lambda arb: 2 * arb.pi().rsqrt(),
    **{name: _of(n, "exp") for name, n in EXPONENTIALS.items()},
    **{name: _of(n, "log") for name, n in LOGARITHMS.items()},
    **{name: _of(n, "sqrt") for name, n in ROOTS.items()},
}
"""Exact constants by name; each is a function of the ball class."""

VALUES = {
    "LN2": 0.6931471805599453,
    "LN10": 2.302585092994046,
    "PI": 3.141592653589793,
    "E": 2.718281828459045,
    "SQRT2": 1.4142135623730951,
    "SQRT1_2": 0.7071067811865476,
    "INV_SQRT_2PI": 0.3989422804014327,
    "SQRT_2_OVER_PI": 0.7978845608028654,
    "TWO_OVER_SQRTPI": 1.1283791670955126,
    **{name: math.exp(n) for name, n in EXPONENTIALS.items()},
    **{name: math.log(n) for name, n in LOGARITHMS.items()},
    **{name: math.sqrt(n) for name, n in ROOTS.items()},
}
"""The same, rounded to float64: a formula that has one of these numbers means the constant."""


def _op(run: Callable[..., Any], ball: Any, cost: float, *partials: str) -> Op:
    return Op(run, balls.method(ball) if isinstance(ball, str) else ball, cost, tuple(map(parse, partials)) or None)


_LARGER = "where({0} == {1}, 0.5, where({0} > {1}, 1, 0))"
"""The derivative of a maximum by its first operand: shared at ties, as in PyTorch."""

OPS: dict[str, Op] = {
    # arithmetic
    "add": _op(torch.add, operator.add, 1, "1", "1"),
    "sub": _op(torch.sub, operator.sub, 1, "1", "-1"),
    "mul": _op(torch.mul, operator.mul, 1, "b", "a"),
    "div": _op(torch.div, operator.truediv, 2, "1/b", "-((a/b)/b)"),
    "neg": _op(torch.neg, operator.neg, 0.3, "-1"),
    "abs": _op(torch.abs, abs, 0.3, "sgn(a)"),
    "sgn": _op(torch.sgn, balls.sgn, 0.5, "0"),
    "sqrt": _op(torch.sqrt, "sqrt", 2, "0.5/sqrt(a)"),
    "rsqrt": _op(torch.rsqrt, "rsqrt", 3, "-0.5*(rsqrt(a)/a)"),
    "hypot": _op(torch.hypot, balls.hypot, 4, "a/hypot(a, b)", "b/hypot(a, b)"),
    "pow": _op(torch.pow, balls.power, 8, "b*pow(a, b - 1)", "pow(a, b)*log(a)"),
    # exponentials and logarithms
    "exp": _op(torch.exp, "exp", 4, "exp(a)"),
    "exp2": _op(torch.exp2, balls.exp2, 4, "LN2*exp2(a)"),
    "expm1": _op(torch.expm1, "expm1", 5, "exp(a)"),
    "log": _op(torch.log, "log", 4, "1/a"),
    "log2": _op(torch.log2, balls.log2, 4, "1/(a*LN2)"),
    "log10": _op(torch.log10, balls.log10, 4, "1/(a*LN10)"),
    "log1p": _op(torch.log1p, "log1p", 5, "1/(1 + a)"),
    "sigmoid": _op(torch.sigmoid, balls.sigmoid, 6, "sigmoid(a)*sigmoid(-a)"),
    "softplus": _op(primitives.softplus, balls.softplus, 9, "sigmoid(a)"),
    # circular and hyperbolic
    "sin": _op(torch.sin, "sin", 6, "cos(a)"),
    "cos": _op(torch.cos, "cos", 6, "-sin(a)"),
    "tan": _op(torch.tan, balls.tan, 7, "1 + tan(a)*tan(a)"),
    "sinpi": _op(primitives.sinpi, "sin_pi", 9, "PI*cospi(a)"),
    "cospi": _op(primitives.cospi, "cos_pi", 9, "-(PI*sinpi(a))"),
    "asin": _op(torch.asin, "asin", 6, "1/sqrt((1 - a)*(1 + a))"),
    "acos": _op(torch.acos, "acos", 6, "-(1/sqrt((1 - a)*(1 + a)))"),
    "atan": _op(torch.atan, "atan", 6, "1/(1 + a*a)"),
    "atan2": _op(torch.atan2, balls.atan2, 8, "b/(a*a + b*b)", "-(a/(a*a + b*b))"),
    "sinh": _op(torch.sinh, balls.sinh, 7, "cosh(a)"),
    "cosh": _op(torch.cosh, balls.cosh, 7, "sinh(a)"),
    "tanh": _op(torch.tanh, "tanh", 6, "1 - tanh(a)*tanh(a)"),
    "asinh": _op(torch.asinh, "asinh", 8, "1/hypot(1, a)"),
    "acosh": _op(torch.acosh, "acosh", 8, "1/(sqrt(a - 1)*sqrt(a + 1))"),
    "atanh": _op(torch.atanh, "atanh", 8, "1/((1 - a)*(1 + a))"),
    # error function, Gaussian, gamma
    "erf": _op(torch.erf, "erf", 6, "TWO_OVER_SQRTPI*exp(-(a*a))"),
    "erfc": _op(torch.erfc, balls.erfc, 8, "-(TWO_OVER_SQRTPI*exp(-(a*a)))"),
    "erfcx": _op(torch.special.erfcx, balls.erfcx, 10, "(2*a)*erfcx(a) - TWO_OVER_SQRTPI"),
    "gauss": _op(primitives.gauss, balls.gauss, 10, "-(a*gauss(a))"),
    "qgauss": _op(primitives.qgauss, balls.qgauss, 10, "-0.5*(a*qgauss(a))"),
    "lgamma": _op(torch.lgamma, balls.lgamma, 20, "digamma(a)"),
    "digamma": _op(torch.digamma, balls.digamma, 20, "trigamma(a)"),
    "trigamma": _op(primitives.trigamma, balls.trigamma, 30),
    # kinks and choices; derivatives at the kinks are PyTorch's
    "relu": _op(torch.relu, balls.relu, 0.5, "where(a > 0, 1, 0)"),
    "maximum": _op(torch.maximum, lambda a, b: a.max(b), 1, *(_LARGER.format(*p) for p in ("ab", "ba"))),
    "minimum": _op(torch.minimum, lambda a, b: a.min(b), 1, *(_LARGER.format(*p) for p in ("ba", "ab"))),
    "where": Op(torch.where, balls.where, 1, None),
    "floor": _op(torch.floor, "floor", 1, "0"),
    "ceil": _op(torch.ceil, "ceil", 1, "0"),
    "gt": Op(torch.gt, balls.greater, 0.5, None),
    "ge": Op(torch.ge, lambda a, b: balls.negated(balls.greater(b, a)), 0.5, None),
    "lt": Op(torch.lt, lambda a, b: balls.greater(b, a), 0.5, None),
    "le": Op(torch.le, lambda a, b: balls.negated(balls.greater(a, b)), 0.5, None),
    "eq": Op(torch.eq, balls.equal, 0.5, None),
    "ne": Op(torch.ne, lambda a, b: balls.negated(balls.equal(a, b)), 0.5, None),
    "logical_and": Op(torch.logical_and, balls.both, 0.3, None),
    "logical_or": Op(torch.logical_or, lambda a, b: balls.negated(balls.both(*map(balls.negated, (a, b)))), 0.3, None),
    "logical_not": Op(torch.logical_not, balls.negated, 0.3, None),
}
CONDITIONS = frozenset({"gt", "ge", "lt", "le", "eq", "ne", "logical_and", "logical_or", "logical_not"})
"""Ops whose value is a truth value."""
