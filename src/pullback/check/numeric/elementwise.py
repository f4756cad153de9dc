"""A subject that computes elementwise: its values and gradients at any points, its kinks, and where faults begin."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.derivative.oracle import SIGNIFICANT, differentiate
from pullback.check.find.kernels import as_written
from pullback.check.subject import Subject
from pullback.check.trial import ForwardRun, Raised, as_real, forward, vjp
from pullback.dtypes import has_reals
from pullback.stable.formats import Floats, Format, Mask, format_of, widened

Columns = Mapping[str, Floats]
"""For each input that varies its values at some points."""

_MOST_INPUTS = 3
_PROBED = 7
"""Rows of the probe; one element of them is moved."""
_MOVE = 1.375
_FEW_DIGITS = torch.bfloat16


@dataclass(frozen=True)
class Elementwise:
    """A subject whose output i depends only on element i of some inputs, with the other arguments fixed.

    Attributes:
        subject: the function.
        base: the working example.
        names: names of the inputs that vary.
    """

    subject: Subject
    base: Case
    names: tuple[str, ...]

    def run(self, dtype: torch.dtype, at: Columns) -> list[Tensor]:
        """Return the value, and its derivative by each input that varies, at some points.

        Raises:
            Raised: if the forward or the backward refuses one of them.
        """
        count = len(at[self.names[0]])
        with self._in(dtype):
            run = forward(self.subject, self.case(dtype, at))
            value = run.outputs[0].detach()
            return [t.flatten()[:count] for t in (value, *self._slopes(run))]

    def values(self, dtype: torch.dtype, at: Columns) -> Tensor:
        """Return the value alone."""
        moved = self.case(dtype, at).tensors
        with self._in(dtype):
            run = forward(self.subject, self.case(dtype, at), moved=moved, call=self.subject.relaxation)
        return run.outputs[0].flatten()[: len(at[self.names[0]])]

    def _in(self, dtype: torch.dtype) -> AbstractContextManager[object]:
        return as_written(self.subject.is_interpreted and dtype != torch.float64)

    def _slopes(self, run: ForwardRun) -> list[Tensor]:
        gradients = vjp(run, [torch.ones_like(out) for out in run.roots])
        return [
            torch.zeros_like(run.inputs[input_index]) if (g := gradients[input_index]) is None else g.detach()
            for input_index, position in enumerate(self.base.wrt)
            if self.base.names[position] in self.names
        ]

    def case(self, dtype: torch.dtype, at: Columns) -> Case:
        """Return the example with points in place of the varying inputs, all in one dtype.

        Fixed tensors are first rounded to few digits, so that they are the same numbers in every dtype. All sizes but
        the first are kept, so that other arguments still fit; the last point is repeated to fill the shape.
        """
        shape = self.shape
        changed: dict[int, Tensor] = {}
        for position, value in enumerate(self.base.values):
            if not isinstance(value, Tensor):
                continue
            name = self.base.names[position]
            if name in self.names and position in self.base.wrt:
                points = at[name]
                filled = self._filled(points)
                changed[position] = torch.from_numpy(filled).to(dtype).reshape(-1, *shape[1:])
            elif has_reals(value):
                changed[position] = value.to(_FEW_DIGITS).to(dtype)
        return self.base.with_values(changed, str(dtype).removeprefix("torch."))

    def _filled(self, points: Floats) -> Floats:
        return np.pad(points, (0, -len(points) % self.row), mode="edge")

    def joined(self, parts: Sequence[Columns]) -> Columns:
        """Return the points of all parts, each at its place in a row: fixed tensors may differ along a row.

        The last point of each part is repeated to fill a row.
        """
        return {name: np.concatenate([self._filled(part[name]) for part in parts]) for name in self.names}

    def example(self, name: str) -> float:
        """Return the first number of an input in the example."""
        position = next(p for p in self.base.wrt if self.base.names[p] == name)
        return float(self.base.values[position].flatten()[0])

    @property
    def holds_numbers(self) -> bool:
        """Whether a tensor of numbers is held fixed."""
        return any(
            isinstance(value, Tensor) and has_reals(value) and name not in self.names
            for name, value in zip(self.base.names, self.base.values, strict=True)
        )

    @property
    def row(self) -> int:
        """Number of points for which the fixed tensors have the same elements again."""
        return math.prod(self.shape[1:])

    @property
    def shape(self) -> torch.Size:
        """The sizes of those inputs in the example."""
        positions = [p for p in self.base.wrt if self.base.names[p] in self.names]
        shape: torch.Size = self.base.values[positions[0]].shape
        return shape


def elementwise(subject: Subject, base: Case) -> Elementwise | None:
    """The subject as an elementwise function, if perturbing single elements shows it to be one."""
    tensors = base.tensors
    if any(t.is_complex() or not t.numel() for t in tensors) or len({id(t) for t in tensors}) < len(tensors):
        return None
    try:
        outputs = forward(subject, base).outputs
        if len(outputs) != 1 or not outputs[0].is_floating_point():
            return None
        names = tuple(base.names[p] for p in base.wrt if base.values[p].shape == outputs[0].shape)
        if not 1 <= len(names) <= _MOST_INPUTS:
            return None
        found = Elementwise(subject, base, names)
        return found if _computes_elementwise(found) else None
    except (Raised, RuntimeError, ValueError):
        return None


def _computes_elementwise(found: Elementwise) -> bool:
    """Whether moving one element of every input changes that element of each result and no other."""
    # Two elements are moved, the first and one in the middle: every dependence of other results on these shows, unless
    # it is flat over the move or rounded away. That stands for all elements.
    shape = found.shape
    count = _PROBED * math.prod(shape[1:])
    original = {
        name: np.resize(found.base.values[p].detach().double().flatten().numpy(), count)
        for p, name in enumerate(found.base.names)
        if name in found.names
    }
    dtype = found.base.tensors[0].dtype
    before = found.run(dtype, original)
    if any(t.numel() != count for t in before):
        return False
    moved_some = False
    for k in (0, count // 2):
        moved = {name: np.where(np.arange(count) == k, x * _MOVE + 2**-4, x) for name, x in original.items()}
        for a, b in zip(before, found.run(dtype, moved), strict=True):
            differs = (a != b) & ~(a.isnan() & b.isnan())
            moved_some = moved_some or bool(differs[k])
            differs[k] = False
            if bool(differs.any()):
                return False
    return moved_some


def columns(points: Sequence[Mapping[str, float]]) -> dict[str, Floats]:
    """Return points, at least one, as an array for each input."""
    return {name: np.array([point[name] for point in points]) for name in points[0]}


_DOUBLINGS = 40
_PARTS, _ROUNDS = 16, 16
"""16 rounds of 16 parts: more numbers than any format has."""


@dataclass(frozen=True, slots=True)
class Onset:
    """Where a fault begins.

    Attributes:
        point: the first bad point.
        upwards: whether larger magnitudes are bad; else smaller ones.
    """

    point: dict[str, float]
    upwards: bool


def onset(bad: Callable[[Columns], Mask], form: Format, point: dict[str, float]) -> Onset | None:
    """Return the first bad point on the way from a good one, with smaller or else larger numbers, to a bad one."""
    for upwards in (True, False):
        factors = np.ldexp(1.0, (-1 if upwards else 1) * np.arange(1, _DOUBLINGS + 1))
        rows = {name: form.round(x * factors) for name, x in point.items()}
        inside = np.all([np.isfinite(x) for x in rows.values()], axis=0)
        if not inside.any() or not any(point.values()):
            continue
        fine = np.flatnonzero(~bad({name: x[inside] for name, x in rows.items()}))
        if len(fine):
            good = {name: float(x[inside][fine[0]]) for name, x in rows.items()}
            return Onset(_first_bad(bad, form, good, point), upwards)
    return None


def _first_bad(
    bad: Callable[[Columns], Mask], form: Format, good: dict[str, float], point: dict[str, float]
) -> dict[str, float]:
    names = list(point)
    low, high = (form.ordinal(np.array([p[name] for name in names])) for p in (good, point))
    # Bisection by sixteenths of the ordinals, which number the floats in order. Of a fault that comes and goes it finds
    # one beginning, not always the first.
    for _ in range(_ROUNDS):
        steps = [low + (high - low) * k // _PARTS for k in range(1, _PARTS)]
        rows = form.at_ordinal(np.array(steps).T)
        found = np.flatnonzero(bad(dict(zip(names, rows, strict=True))))
        first = found[0] if len(found) else _PARTS - 1
        after = steps[first] if len(found) else high
        before = steps[first - 1] if first else low
        if np.array_equal(after, high) and np.array_equal(before, low):
            break
        low, high = before, after
    return dict(zip(names, map(float, form.at_ordinal(high)), strict=True))


def plainest(at: Columns, among: Mask) -> tuple[int, dict[str, float]]:
    """Index and coordinates of the point whose magnitudes are closest to 1."""
    with np.errstate(divide="ignore"):
        far: Floats = np.max([np.where(x == 0, _ODD_ZERO, np.abs(np.log2(np.abs(x)))) for x in at.values()], axis=0)
        far = far + _TIE * np.any([np.signbit(x) for x in at.values()], axis=0)
    index = int(np.argmin(np.where(among, far, np.inf)))
    return index, {name: float(x[index]) for name, x in at.items()}


_ODD_ZERO = 12.0
"""Distance of 0 from 1 in octaves, for the choice of a plain point."""
_TIE = 1e-6
"""Penalty of negative numbers, so that the positive one of two is chosen."""


PASSED, ORDINARY = (1e-2, 1e2), (1e-8, 1e4)
"""Magnitudes of common inputs, and of inputs that still occur."""


def is_within(point: dict[str, float], magnitudes: tuple[float, float]) -> bool:
    """Whether each number is 0, or of a magnitude between the two."""
    return all(x == 0 or magnitudes[0] <= abs(x) <= magnitudes[1] for x in point.values())


def single(point: dict[str, float]) -> Columns:
    """Return one point as columns."""
    return columns([point])


_STEP = 2.0**-10
"""The first step of the ladder is about a sixteenth of this, relative to the point, or to 1 if that is larger."""
_UNDECIDED = 1e-3
"""Bar, relative to max(|slope|, 1), above which an estimate is undecided."""


@dataclass(frozen=True, slots=True)
class NumericSlope:
    """A numeric derivative.

    Attributes:
        low, high: the one-sided derivatives; one value where there is no kink.
        bar: their absolute uncertainty.
        kink: whether they differ.
    """

    low: float
    high: float
    bar: float
    kink: bool

    def nearest(self, slope: float) -> float:
        """Return the derivative, at a kink the one nearest to a number."""
        return min(max(slope, self.low), self.high)

    def accepts(self, slope: float) -> bool:
        """Whether a number is one of the derivatives, within the error bars."""
        slack = SIGNIFICANT * self.bar + 1e-6 * max(abs(self.low), abs(self.high))
        return self.low - slack <= slope <= self.high + slack


def slope_at(function: Elementwise, by: str, point: dict[str, float], step: float = _STEP) -> NumericSlope | None:
    """Return the derivative of the value by one input at a point, in float64; `None` if it is undecided."""
    scale = step * max(1.0, abs(point[by]))

    def curve(t: float) -> Tensor:
        return as_real(function.values(torch.float64, single({**point, by: point[by] + t * scale})))

    try:
        found = differentiate(curve)
    except Raised:
        return None
    low, high, bar = (float(t[0]) / scale for t in (found.low, found.high, found.bar))
    if not bool(found.valid[0]) or bar > _UNDECIDED * max(1.0, abs(low), abs(high)):
        return None
    return NumericSlope(low, high, bar, bool(found.kink[0]))


_FORM = format_of(torch.float64)
_HALF_WIDTH, _GRID = 16.0, 1024
_MOST_JUMPS, _JUMP_PARTS, _JUMP_ROUNDS = 12, 16, 16
_RELEVANT = 1e-3
"""A jump is at least this part of the largest gradient."""


def jumps(function: Elementwise, by: str, beside: dict[str, float]) -> list[tuple[float, float]]:
    """Return pairs of neighbouring float64 numbers between which the gradient by one input jumps.

    Args:
        function: the subject.
        by: the moving input, from -16 to 16.
        beside: the values of the others.
    """

    def gradient(x: Floats) -> Floats:
        at: Columns = {name: x if name == by else np.full(len(x), beside[name]) for name in function.names}
        return widened(function.run(torch.float64, at)[1 + function.names.index(by)])

    # Uneven, so that no whole number and no simple fraction is met by chance.
    x = np.linspace(-_HALF_WIDTH, _HALF_WIDTH * 1.0007, _GRID) + 0.00137
    slope = gradient(x)
    finite = np.isfinite(slope)
    if not finite.any():
        return []
    height = np.nan_to_num(np.abs(np.diff(slope)), nan=0.0, posinf=0.0)
    least = _RELEVANT * float(np.abs(slope[finite]).max())
    steepest = [int(k) for k in np.argsort(-height)[:_MOST_JUMPS] if height[k] > least]
    if not steepest:
        return []
    # Between two points the gradient changes by a slope times their distance, and by jumps. As the interval shrinks to
    # neighbouring floats, only a jump stays.
    low, high = _FORM.ordinal(x[steepest]), _FORM.ordinal(x[[k + 1 for k in steepest]])
    rows = np.arange(len(steepest))
    for _ in range(_JUMP_ROUNDS):
        width, parts = (high - low)[:, None], np.arange(_JUMP_PARTS + 1)
        # not width * parts // _JUMP_PARTS: from -16 to 16 there are almost 2^63 numbers
        grid = low[:, None] + width // _JUMP_PARTS * parts + width % _JUMP_PARTS * parts // _JUMP_PARTS
        slopes = gradient(_FORM.at_ordinal(grid.ravel())).reshape(grid.shape)
        steps = np.nan_to_num(np.abs(np.diff(slopes, axis=1)), nan=0.0, posinf=0.0)
        k = np.argmax(steps, axis=1)
        low, high, height = grid[rows, k], grid[rows, k + 1], steps[rows, k]
    ends = _FORM.at_ordinal(low), _FORM.at_ordinal(high)
    found = [(float(a), float(b)) for a, b, h in zip(*ends, height, strict=True) if h > least]
    return sorted(set(found))
