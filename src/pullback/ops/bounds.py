"""Interval arithmetic on tensors of float64.

PyTorch's float64 kernels are assumed to be within 2⁻⁴⁸ of the exact value, relatively (16 ulp). `stable/intervals.py`
evaluates terms with these bounds, and its tests compare them with the oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

KERNEL = 2.0**-48
"""Assumed relative error of a float64 kernel: an ulp is at most 2⁻⁵² of a number."""

ROUNDING = 2.0**-52
"""Bound on the relative error of an arithmetic operation.

It is 2⁻⁵³, and half an ulp. |b| 2⁻⁵² is one to two ulp of b, so that the rounding of b ± |b| 2⁻⁵² leaves at least one.
"""

_TINY = 2.0**-1060
"""Bound on the error of rounding to a subnormal number: 2¹⁴ times the distance between these."""

_LARGEST = torch.finfo(torch.float64).max


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds of a real number at each point.

    Attributes:
        low: at most that number; never +∞.
        high: at least that number; never −∞.
        undefined: where there is certainly none, and the bounds are the whole line; `None` for nowhere.
    """

    low: Tensor
    high: Tensor
    undefined: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """Enclosure of a truth value at each point.

    Attributes:
        true: where it holds.
        false: where it does not hold; elsewhere neither is known.
        undefined: where an operand is undefined; `None` for nowhere.
    """

    true: Tensor
    false: Tensor
    undefined: Tensor | None = None


def exactly(value: Tensor) -> Interval:
    """Return the interval of one number."""
    return Interval(value, value)


def around(
    low: Tensor, high: Tensor, relative: float, absolute: float = 0.0, undefined: Tensor | None = None
) -> Interval:
    """Return the interval between computed bounds, widened by their errors; NaN is not a valid bound.

    A bound b is moved outwards by |b| · relative + absolute, and by `_TINY` for results below the normal numbers.
    """
    low = torch.nan_to_num(low, nan=-torch.inf, posinf=_LARGEST, neginf=-torch.inf)
    high = torch.nan_to_num(high, nan=torch.inf, posinf=torch.inf, neginf=-_LARGEST)
    low = low - (low.abs() * relative + (_TINY + absolute))
    high = high + (high.abs() * relative + (_TINY + absolute))
    return masked(low, high, undefined)


def masked(low: Tensor, high: Tensor, undefined: Tensor | None) -> Interval:
    """Return an interval, the whole line where there is no value."""
    if undefined is None:
        return Interval(low, high)
    return Interval(low.masked_fill(undefined, -torch.inf), high.masked_fill(undefined, torch.inf), undefined)


Bounds: TypeAlias = Callable[..., Any]
"""Maps the operands' intervals, and for choices their conditions, to the interval of an op's value."""

Outside: TypeAlias = Callable[[Interval], Tensor]
"""Where an interval is outside of a function's domain."""


def either(*masks: Tensor | None) -> Tensor | None:
    """Return where one of some masks holds."""
    found = None
    for mask in masks:
        if mask is not None:
            found = mask if found is None else found | mask
    return found


def monotone(
    run: Callable[[Tensor], Tensor],
    sign: int = 1,
    outside: Outside | None = None,
    relative: float = KERNEL,
    absolute: float = 0.0,
) -> Bounds:
    """Bounds of a function that grows (sign 1) or falls (−1) all over its domain."""

    def bounds(a: Interval) -> Interval:
        low = run(a.low)
        high = low if a.high is a.low else run(a.high)
        undefined = a.undefined if outside is None else either(a.undefined, outside(a))
        pair = (low, high) if sign == 1 else (high, low)
        return around(*pair, relative, absolute, undefined)

    return bounds


def exact(run: Callable[..., Tensor]) -> Bounds:
    """Bounds of a function that grows in each operand and is computed without error."""

    def bounds(*args: Interval) -> Interval:
        low = run(*(a.low for a in args))
        return Interval(low, run(*(a.high for a in args)), either(*(a.undefined for a in args)))

    return bounds


def absolute(a: Interval) -> Interval:
    """Return the interval of |a|."""
    low = torch.clamp_min(torch.maximum(a.low, -a.high), 0.0)
    return Interval(low, torch.maximum(-a.low, a.high), a.undefined)


def corners(
    run: Callable[[Tensor, Tensor], Tensor], a: Interval, b: Interval, relative: float, valid: Tensor | None = None
) -> Interval:
    """Return the bounds of a function of two operands that is monotone in each, where `valid` holds.

    The direction may depend on the other operand: for each b the extremes over a are at its ends, and there those over
    b are at its ends.

    A NaN corner counts as 0. That is the value of 0 · x for every attained x, since an infinite end is not attained,
    and for ∞/∞ the other corners bound the values.
    """
    pairs = [(a.low, b.low), (a.low, b.high), (a.high, b.low), (a.high, b.high)]
    values = torch.stack(torch.broadcast_tensors(*(run(x, y) for x, y in pairs)))
    values = torch.where(values.isnan(), 0.0, values)
    low, high = values.amin(0), values.amax(0)
    if valid is not None:
        low, high = torch.where(valid, low, -torch.inf), torch.where(valid, high, torch.inf)
    return around(low, high, relative, 0.0, either(a.undefined, b.undefined))


def centre(a: Interval) -> tuple[Tensor, Tensor]:
    """Return the midpoint m of the interval, and a radius: max(high − m, m − low), rounded up."""
    if a.low is a.high:
        return a.low, torch.zeros_like(a.low)
    middle = a.low / 2 + a.high / 2
    return middle, torch.maximum(a.high - middle, middle - a.low) * (1 + KERNEL) + _TINY


def even(of_size: Bounds) -> Bounds:
    """Bounds of an even function, by those for numbers that are not negative."""
    return lambda a: of_size(absolute(a))


def lipschitz(run: Callable[[Tensor], Tensor], slope: float, most: float) -> Bounds:
    """Bounds of a function with |f′| ≤ slope and |f| ≤ most, by its value in the middle of the interval.

    |f(x) − f(m)| ≤ slope · |x − m|, by the mean value theorem.
    """

    def bounds(a: Interval) -> Interval:
        middle, radius = centre(a)
        value = run(middle)
        off = slope * radius + value.abs() * KERNEL
        low, high = torch.nan_to_num(value - off, nan=-most), torch.nan_to_num(value + off, nan=most)
        return around(low.clamp(-most, most), high.clamp(-most, most), ROUNDING, 0.0, a.undefined)

    return bounds


def where_positive(of_positive: Bounds) -> Bounds:
    """Bounds that hold for positive numbers; for others they are the whole line."""

    def bounds(a: Interval) -> Interval:
        found = of_positive(a)
        line = torch.where(a.low > 0, 0.0, torch.inf)
        return Interval(found.low - line, found.high + line, found.undefined)

    return bounds
