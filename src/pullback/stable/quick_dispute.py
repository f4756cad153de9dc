"""Exact values at the few points where float64 cannot tell a quick form from the formula as written.

By mpmath, a dependency of PyTorch, since the oracle's library is optional.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from pullback.stable.ops import EXPONENTIALS, LOGARITHMS, ROOTS
from pullback.stable.term import CONST, NAMED, VAR, Term, topological

_PRECISIONS = (500, 1000)
"""In bits; where the two differ nothing is known."""
_ALIKE, _NEGLIGIBLE = 2.0**-40, 2.0**-300
_LIMIT_PRECISION, _DISTANCES, _CLOSE, _VANISHING = 3000, (200, 400), 2.0**-60, 2.0**-90
"""Limits are read off values at two distances from a place, as powers of two, on both sides."""
_NO_VALUE = (ImportError, ArithmeticError, ValueError, KeyError, TypeError, NotImplementedError)


def exact(root: Term, point: Mapping[str, float]) -> float | None:
    """Return the value of a term at a point, rounded; `None` if it has none, or it cannot be computed."""
    try:
        rough, value = (_value(root, point, bits) for bits in _PRECISIONS)
        if rough is None or value is None:
            return None
        if max(abs(rough), abs(value)) < _NEGLIGIBLE:  # the residue of a cancellation, or as small in truth
            return 0.0
        if abs(rough - value) > _ALIKE * abs(value):
            return None
        return float(value)
    except _NO_VALUE:
        return None


def limit(root: Term, name: str, place: float) -> float | None:
    """Return the limit of a term of one variable at a place, rounded; `None` if it has none from both sides."""
    try:
        context, _ = _at(_LIMIT_PRECISION)
        steps = [sign * context.ldexp(1, -d) for d in _DISTANCES for sign in (1, -1)]
        values = [_value(root, {name: context.mpf(place) + step}, _LIMIT_PRECISION) for step in steps]
    except _NO_VALUE:
        return None
    if any(value is None for value in values):
        return None
    if max(map(abs, values)) < _VANISHING:
        return 0.0
    return float(values[-1]) if all(abs(v - values[-1]) <= _CLOSE * abs(values[-1]) for v in values) else None


def _value(root: Term, point: Mapping[str, Any], bits: int) -> Any:
    context, functions = _at(bits)
    made: dict[Term, Any] = {}
    for term in topological([root]):
        if term.op == VAR:
            made[term] = context.mpf(point[term.value])
        elif term.op == CONST:
            made[term] = context.mpf(term.value.numerator) / term.value.denominator
        elif term.op == NAMED:
            made[term] = functions[term.value]
        else:
            made[term] = functions[term.op](*(made[a] for a in term.args))
            if isinstance(made[term], context.mpc):  # outside of the domain
                return None
    value = made[root]
    return value if context.isfinite(value) else None


@cache
def _at(bits: int) -> tuple[Any, dict[str, Any]]:
    """Return a separate mpmath context, and the functions of the table of ops in it."""
    import mpmath  # type: ignore[import-untyped]  # late: it takes a twentieth of a second, and not all formulas need it

    mp = mpmath.MPContext()
    mp.prec = bits
    functions: dict[str, Callable[..., Any]] = {
        "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "neg": operator.neg,
        "abs": abs, "sgn": mp.sign, "sqrt": mp.sqrt, "rsqrt": lambda a: 1 / mp.sqrt(a), "hypot": mp.hypot,
        "pow": mp.power, "exp": mp.exp, "exp2": lambda a: mp.power(2, a), "expm1": mp.expm1, "log": mp.log,
        "log2": lambda a: mp.log(a, 2), "log10": mp.log10, "log1p": mp.log1p,
        "sigmoid": lambda a: 1 / (1 + mp.exp(-a)), "softplus": lambda a: mp.log1p(mp.exp(a)),
        "sin": mp.sin, "cos": mp.cos, "tan": mp.tan, "sinh": mp.sinh, "cosh": mp.cosh, "tanh": mp.tanh,
        "asin": mp.asin, "acos": mp.acos, "atan": mp.atan, "asinh": mp.asinh, "acosh": mp.acosh, "atanh": mp.atanh,
        "atan2": mp.atan2, "erf": mp.erf, "erfc": mp.erfc, "gauss": lambda a: mp.exp(-a * a / 2),
        "relu": lambda a: max(a, mp.zero), "maximum": max, "minimum": min,
        "where": lambda condition, a, b: a if condition else b,
        "gt": operator.gt, "ge": operator.ge, "lt": operator.lt, "le": operator.le, "eq": operator.eq,
        "ne": operator.ne, "logical_and": lambda a, b: a and b, "logical_or": lambda a, b: a or b,
        "logical_not": operator.not_,
    }  # fmt: skip
    numbers = {
        "LN2": mp.log(2), "LN10": mp.log(10), "PI": +mp.pi, "E": +mp.e, "SQRT2": mp.sqrt(2), "SQRT1_2": mp.sqrt(0.5),
        "INV_SQRT_2PI": 1 / mp.sqrt(2 * mp.pi), "SQRT_2_OVER_PI": mp.sqrt(2 / mp.pi),
        "TWO_OVER_SQRTPI": 2 / mp.sqrt(mp.pi),
        **{name: mp.exp(n) for name, n in EXPONENTIALS.items()},
        **{name: mp.log(n) for name, n in LOGARITHMS.items()},
        **{name: mp.sqrt(n) for name, n in ROOTS.items()},
    }  # fmt: skip
    return mp, {**functions, **numbers}
