"""A subject that computes each element of its output from the same element of its inputs, run on many points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.subject import Subject
from pullback.check.trial import ForwardRun, Raised, forward, vjp
from pullback.dtypes import has_derivative
from pullback.stable.formats import Floats

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
        names: of the inputs that vary.
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
        run = forward(self.subject, self.case(dtype, at))
        value = run.outputs[0].detach()
        return [t.flatten()[:count] for t in (value, *self._slopes(run))]

    def values(self, dtype: torch.dtype, at: Columns) -> Tensor:
        """Return the value alone."""
        moved = self.case(dtype, at).tensors
        run = forward(self.subject, self.case(dtype, at), moved=moved, call=self.subject.relaxation)
        return run.outputs[0].flatten()[: len(at[self.names[0]])]

    def _slopes(self, run: ForwardRun) -> list[Tensor]:
        gradients = vjp(run, [torch.ones_like(out) for out in run.roots])
        return [
            torch.zeros_like(run.inputs[order]) if (g := gradients[order]) is None else g.detach()
            for order, position in enumerate(self.base.wrt)
            if self.base.names[position] in self.names
        ]

    def case(self, dtype: torch.dtype, at: Columns) -> Case:
        """Return the example with points in place of the varying inputs, all in one dtype.

        Fixed tensors are first rounded to few digits, so that they are the same numbers in every dtype. All sizes but
        the first are kept, so that other arguments still fit; the last point is repeated to fill the shape.
        """
        shape = self.shape
        row = math.prod(shape[1:])
        changed: dict[int, Tensor] = {}
        for position, value in enumerate(self.base.values):
            if not isinstance(value, Tensor):
                continue
            name = self.base.names[position]
            if name in self.names and position in self.base.wrt:
                points = at[name]
                filled = np.pad(points, (0, -len(points) % row), mode="edge")
                changed[position] = torch.from_numpy(filled).to(dtype).reshape(-1, *shape[1:])
            elif has_derivative(value):
                changed[position] = value.to(_FEW_DIGITS).to(dtype)
        return self.base.with_values(changed, str(dtype).removeprefix("torch."))

    def example(self, name: str) -> float:
        """Return the first number of an input in the example."""
        position = next(p for p in self.base.wrt if self.base.names[p] == name)
        return float(self.base.values[position].flatten()[0])

    @property
    def holds_numbers(self) -> bool:
        """Whether a tensor of numbers is held fixed."""
        return any(
            isinstance(value, Tensor) and has_derivative(value) and name not in self.names
            for name, value in zip(self.base.names, self.base.values, strict=True)
        )

    @property
    def shape(self) -> torch.Size:
        """The sizes of those inputs in the example."""
        positions = [p for p in self.base.wrt if self.base.names[p] in self.names]
        shape: torch.Size = self.base.values[positions[0]].shape
        return shape


def elementwise(subject: Subject, base: Case) -> Elementwise | None:
    """Return the subject as one that computes elementwise, if it does as far as moving single elements shows."""
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
        return found if _each_by_itself(found) else None
    except (Raised, RuntimeError, ValueError):
        return None


def _each_by_itself(found: Elementwise) -> bool:
    """Whether moving one element of every input changes that element of each result and no other."""
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
