"""Exact values at the few points where float64 cannot tell a quick form from the formula as written.

By mpmath, a dependency of PyTorch, since the oracle's library is optional.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from pullback.ops.constants import MPMATH
from pullback.ops.registry import OPS
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
    functions = {name: _function(mp, op.mpmath) for name, op in OPS.items() if op.mpmath is not None}
    numbers = {name: of(mp) for name, of in MPMATH.items()}
    return mp, {**functions, **numbers}


def _function(mp: Any, function: str | Callable[..., Any]) -> Callable[..., Any]:
    made: Callable[..., Any] = getattr(mp, function) if isinstance(function, str) else partial(function, mp)
    return made
