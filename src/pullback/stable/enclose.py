"""Terms at many points at once, in float64, with bounds: intervals that hold the exact values.

PyTorch's float64 kernels are taken to be within 2⁻⁴⁸ of the exact value, relatively (16 ulp; `trigamma` 2⁻³⁰; `lgamma`
and `digamma`, which have roots, by as much absolutely). That is an assumption: whoever uses these bounds tests them
against the oracle at some of the points. Nothing else is assumed: where a value overflows, cancels or cannot be
bounded, the interval is wide, or the whole line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pullback.errors import FormulaError
from pullback.ops.bounds import KERNEL, ROUNDING, Condition, Interval, around, exactly
from pullback.ops.constants import VALUES
from pullback.ops.registry import OPS
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
        elif term.op in OPS:
            found[term] = OPS[term.op].bounds(*(found[a] for a in term.args))
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
    return all(term.op in OPS or term.op in (VAR, CONST, NAMED) for term in topological([root]))
