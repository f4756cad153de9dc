"""Error bars of the numbers that a reference gives: its range over inputs that differ by a rounding.

Nothing here is a fixed tolerance. The reference runs in float64 on the inputs as they are, and on inputs that are moved
by some units in the last place: in float64, or in the dtype of the candidate. The range of these runs is what rounding
can do to the formula: wide where it is ill-conditioned, both sides of a kink, all that a random number may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.case import Case, is_differentiable
from pullback.check.cases.structure import is_fixed
from pullback.check.trial import as_real

Compute = Callable[[Case], Sequence[Tensor | None]]
"""Every output and gradient of the reference on a case, in one order; `None` for a gradient that is zero."""

_MANY = 1 << 14
"""Elements from which half of the samples suffice, since the floor of the bars is a median over them."""
_JUMP = 0.85
"""Part of the range of the samples that one gap takes at a kink or a jump; elsewhere the largest is about a half."""
_LARGE = 1e3
"""Magnitude of inputs beyond which rounding is not taken to grow with them."""
_SINGLE = torch.finfo(torch.float32).eps
_ALGORITHM = 2.0**-33
_UNDERFLOW = 1e-30
"""Move of an element of a tensor of zeros: it shows a kink there, and is lost beside any epsilon of a formula."""


@dataclass(frozen=True, slots=True)
class Precision:
    """The arithmetic of a candidate.

    Attributes:
        dtype: in which the reference is sampled.
        step: relative move of its inputs.
        factor: bars for each spread that is seen.
        cancelled: roundings of terms of the ordinary size that may cancel.
        samples: runs of the reference. At a kink they are on one side by chance, at one in 2ⁿ of them.
    """

    dtype: torch.dtype
    step: float
    factor: float
    cancelled: float
    samples: int = 8

    @classmethod
    def of(cls, declared: torch.dtype, working: torch.dtype) -> Precision:
        """The precision of a candidate that was written for a dtype and runs in another, or the same.

        In a narrow dtype one ulp of the inputs moves the result as much as one rounding inside does. In float64 there
        is room: 10⁻¹⁰ allow for another algorithm, and a candidate that was written for a narrower dtype may have
        constants of float32 digits, half an ulp off.
        """
        if working.itemsize == 2:  # functions in 16 bits compute in more inside, and round once
            return cls(working, torch.finfo(working).eps, 4.0, 0.25)
        if working != torch.float64:
            return cls(working, torch.finfo(working).eps, 16.0, 8.0)
        return cls(working, _ALGORITHM if declared == working else _SINGLE / 2, 2.0, 64.0)


@dataclass(frozen=True, slots=True)
class Band:
    """The right values of one tensor, flat, complex numbers as pairs.

    Attributes:
        shape, dtype: of the tensor, as the reference returns it in float64; `None` for a gradient that is zero.
        expected: the values.
        low, high: the interval of right values; NaN where there is none, since the reference is not finite there.
    """

    shape: tuple[int, ...] | None
    dtype: torch.dtype | None
    expected: Tensor
    low: Tensor
    high: Tensor

    def outside(self, got: Tensor) -> Tensor:
        """Where flat values, of the same number, are wrong."""
        return ~(((self.low <= got) & (got <= self.high)) | self.low.isnan())

    def worst(self, got: Tensor, wrong: Tensor) -> tuple[int, tuple[int, ...]]:
        """The wrong value that is farthest off: its place among the flat values, and the index of its element."""
        at = int(torch.where(wrong, (got - self.expected).abs().nan_to_num(nan=torch.inf), -1.0).argmax())
        shape = torch.Size(self.shape or ())
        element = at // 2 if got.numel() > shape.numel() else at
        return at, tuple(int(i) for i in torch.unravel_index(torch.tensor(element), shape)) if shape else ()

    @property
    def is_blunt(self) -> bool:
        """Whether most values are not known to half of their size."""
        known = torch.isfinite(self.low) & torch.isfinite(self.high)
        width, size = (self.high - self.low)[known], self.expected[known].abs()
        if not known.numel():
            return False
        return 2 * int(known.sum()) < known.numel() or bool(width.median() > 0.5 * size.mean().clamp(min=math.ulp(0)))


def cast(case: Case, dtype: torch.dtype) -> Case:
    """The case with its floating tensors in a dtype, and its complex ones in that with such parts."""
    real = torch.complex64 if dtype != torch.float64 else torch.complex128
    tensors = {p: t for p, t in case.all_tensors.items() if is_differentiable(t)}
    return case.with_values({p: t.to(real if t.is_complex() else dtype) for p, t in tensors.items()})


def moved(case: Case, step: float, generator: torch.Generator, sign: int = 0) -> Case:
    """The case with each differentiated element moved by up to a part of itself; with a sign, all of them by that."""

    def change(t: Tensor) -> Tensor:
        if not t.numel() or is_fixed(t):
            return t
        size = t.abs()
        least = size[size > 0].min() if bool((size > 0).any()) else size.new_tensor(_UNDERFLOW)
        way = 2 * torch.rand(t.shape, generator=generator, dtype=torch.float64) - 1
        moves = step * (sign or way) * torch.where(size == 0, least, size)
        return t + moves.nan_to_num(posinf=0.0, neginf=0.0).to(size.dtype)

    return case.map_distinct(case.wrt, change)


def bands(
    compute: Compute,
    case: Case,
    precision: Precision,
    generator: torch.Generator,
    is_extreme: bool = False,
    scales: Sequence[float] = (),
) -> list[Band]:
    """The right values of every output and gradient of a reference.

    Args:
        compute: runs the reference.
        case: the arguments, in any dtype; their values are exact.
        precision: arithmetic of the candidate.
        generator: source of the moves.
        is_extreme: whether an infinite result may be an overflow that another formula avoids.
        scales: what is a large element of each, on an ordinary example; by default the largest here.
    """
    exact = cast(case, torch.float64)
    expected = compute(exact)
    is_long = sum(t.numel() for t in exact.tensors) > _MANY
    runs = []
    for sample in range(precision.samples // 2 if is_long else precision.samples):
        other = moved(exact, precision.step, generator, sign=(0, 1, 0, -1)[sample % 4])
        runs.append(_computed(compute, other, precision.dtype))
    found = []
    for k, value in enumerate(expected):
        others = [run[k] for run in runs if len(run) == len(expected)]
        known = value if value is not None else next((torch.zeros_like(o) for o in others if o is not None), None)
        scale = scales[k] if len(scales) == len(expected) else None
        if known is None:
            found.append(_of_nothing())
        else:
            found.append(_band(known, others, precision, exact, is_extreme, scale))
    return found


def _computed(compute: Compute, case: Case, dtype: torch.dtype) -> Sequence[Tensor | None]:
    """Run the reference in a dtype, or in float64 with rounded inputs and results where it has no kernels for that."""
    if dtype == torch.float64:
        return compute(case)
    narrow = cast(case, dtype)
    try:
        return compute(narrow)
    except Exception:
        wide = compute(cast(narrow, torch.float64))
        return [t.to(dtype) if t is not None and t.is_floating_point() else t for t in wide]


def _of_nothing() -> Band:
    empty = torch.zeros(0, dtype=torch.float64)
    return Band(None, None, empty, empty, empty)


def _band(
    value: Tensor,
    others: Sequence[Tensor | None],
    precision: Precision,
    case: Case,
    is_extreme: bool,
    scale: float | None,
) -> Band:
    """The interval of one tensor, from its value and those on inputs that were moved."""
    expected = as_real(value)
    flat = [
        torch.zeros_like(expected) if t is None else as_real(t) for t in others if t is None or t.shape == value.shape
    ]
    if not expected.numel():
        return Band(tuple(value.shape), value.dtype, expected, expected, expected)
    runs = torch.stack([expected, *flat]).sort(0).values  # NaN last
    low, high = runs[0], runs[-1]
    spread, size = torch.maximum(high - expected, expected - low), expected.abs()
    # At a kink the samples are on two sides: both are right, but no multiple of their distance.
    is_jump = runs.diff(dim=0).amax(0) > _JUMP * (high - low)
    smooth = torch.where(is_jump, 0.0, spread)
    seen = torch.isfinite(smooth) & (smooth > 0)
    # The few samples of one element may agree by chance, and so it counts what is typical of the others: that in
    # absolute terms, where terms cancel, and in relative ones, where sizes differ.
    typical = smooth[seen].median() if bool(seen.any()) else spread.new_zeros(())
    share = (smooth / size)[seen & (size > 0)]
    relative = (share.median() if share.numel() else spread.new_zeros(())) * size
    noise = torch.maximum(smooth, torch.maximum(typical, relative))
    info = torch.finfo(precision.dtype)
    if is_differentiable(value):
        # Rounding of the result itself, and gradual underflow.
        noise = noise.maximum(size * max(info.eps, precision.step)) + 16 * info.tiny
    # Orders of a sum of n terms differ by up to √n roundings (N. J. Higham, Accuracy and Stability of Numerical
    # Algorithms, 2nd edition, 2002, section 4.2), where the moves of single inputs average out.
    taken = sum(t.numel() for t in case.tensors)
    terms = 1.0 if precision.dtype == torch.float64 else max(1.0, math.sqrt(taken / expected.numel()) / 8)
    reach = precision.factor * terms * noise
    if is_differentiable(value):
        # Terms of the ordinary size may cancel inside, as in s (g - <s, g>) where a softmax is saturated; those that
        # went through an exponential are off by as many roundings as their exponent is large.
        usual = scale if scale is not None else float(size.nan_to_num(nan=0.0, posinf=0.0).amax())
        sizes = [float(t.abs().nan_to_num(posinf=0.0).max()) for t in case.tensors if t.numel()]
        largest = max(sizes, default=0.0) ** (2 if is_extreme and len(sizes) > 1 else 1)  # a score is a product of two
        most = _LARGE**3 if is_extreme else _LARGE
        reach = reach + precision.cancelled * info.eps * usual * (1 + min(largest, most))
    low, high = low - reach, high + reach
    unknown = ~torch.isfinite(low) | ~torch.isfinite(high)
    low[unknown] = high[unknown] = torch.nan
    if not is_extreme:
        steady = expected.isinf() & (runs == expected).all(0)
        low[steady] = high[steady] = expected[steady]
    return Band(tuple(value.shape), value.dtype, expected, low, high)
