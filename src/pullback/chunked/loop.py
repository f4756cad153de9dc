"""A formula that runs by chunks of rows: its kernels, and the loop over the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.chunked.step import Step
from pullback.graph.facts import Flat
from pullback.graph.rows import Split, wide

Run = Callable[..., list[Any]]


@dataclass(frozen=True, slots=True)
class Slopes:
    """How the gradient of a call is found.

    Attributes:
        steps: by number of rows.
        ahead: the sums that the derivatives of the result by sums depend on, which are computed first.
        alone: whether there is one sum, which is differentiated with cotangent 1 instead.
        sums: the positions of those that are differentiated.
        shared, rows: the positions of the values that are.
        wanted: positions of the inputs that get a gradient.
        direct: whether the result depends on shared values in another way than by sums.
        narrow: whether any of this has 16 bits.
    """

    steps: dict[int, Step]
    ahead: tuple[int, ...]
    alone: bool
    sums: tuple[int, ...]
    shared: tuple[int, ...]
    rows: tuple[int, ...]
    wanted: tuple[int, ...]
    direct: bool
    narrow: bool


@dataclass(frozen=True, slots=True)
class Chunks:
    """A formula that runs by chunks, ready to call.

    Attributes:
        name: of the op.
        split: the formula.
        size: number of rows of a chunk.
        native: the formula on the tensors of a call, for higher derivatives.
        before, after: of the split.
        sums: shape and dtype of each.
        plain: returns kernels for the sums without gradients, by number of rows: `ahead` of them, or all.
        slopes: of a differentiated call.
    """

    name: str
    split: Split
    size: int
    native: Flat
    before: Run
    after: Run
    sums: tuple[tuple[torch.Size, torch.dtype], ...]
    plain: dict[int, Step]
    slopes: Slopes | None = None

    def given(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the shared values, and the values with rows."""
        made = self.before(*tensors)
        n = self.split.n_shared
        return made[:n], [*(tensors[i] for i in self.split.inputs), *made[n:]]

    def chunks(
        self, steps: dict[int, Step], rows: Sequence[Tensor]
    ) -> Iterator[tuple[Step, slice, list[Tensor], list[Tensor]]]:
        """Go through the rows: the step, where its rows are, these, and memory for it."""
        last, space = None, list[Tensor]()
        for start in range(0, self.split.rows, self.size):
            here = slice(start, min(start + self.size, self.split.rows))
            step = steps[here.stop - here.start]
            if step is not last:
                space.clear()
                last, space = step, [slot.empty() for slot in step.slots]
            yield step, here, [x[here] for x in rows], space

    def plain_sums(self, shared: Sequence[Tensor], rows: Sequence[Tensor]) -> list[Tensor]:
        """Return sums over all rows without a gradient."""
        totals: list[Tensor] = []
        for step, _, parts, space in self.chunks(self.plain, rows):
            totals = added(totals, step.run(*shared, *parts, *space))
        return totals


def added(totals: Sequence[Tensor], parts: Sequence[Tensor]) -> list[Tensor]:
    """Add sums to those so far, 16 bits in 32."""
    parts = [part.to(wide(part.dtype)) for part in parts]
    return [total + part for total, part in zip(totals, parts, strict=True)] if totals else parts
