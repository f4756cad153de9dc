"""Whole numbers that part a dimension of another tensor: the lengths of segments, or the offsets where they begin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.dtypes import has_derivative

_TELLING = 3
"""Whole numbers that add up to a size hardly by chance."""


@dataclass(frozen=True)
class Partition:
    """Whole numbers that part a dimension: lengths of its parts, or where these begin, with the end.

    Attributes:
        whole: position of the whole numbers.
        of, dim: position of the tensor whose dimension they part, and that dimension.
        are_offsets: whether they are where the parts begin.
    """

    whole: int
    of: int
    dim: int
    are_offsets: bool

    def holds(self, case: Case) -> bool:
        """Whether they still part it in a case."""
        t, size = case.values[self.whole], self._size(case)
        if size is None or not t.numel():
            return False
        total = t[0] == 0 and t[-1] == size and bool((t.diff() >= 0).all()) if self.are_offsets else t.sum() == size
        return bool(total)

    def restored(self, case: Case) -> Case | None:
        """Return the case with parts of about the same length; `None` if there is nothing to part."""
        t, size = case.values[self.whole], self._size(case)
        if size is None or t.numel() <= self.are_offsets:
            return None
        parts = t.numel() - self.are_offsets
        ends = torch.arange(parts + 1) * size // parts
        return case.with_values({self.whole: (ends if self.are_offsets else ends.diff()).to(t)})

    def _size(self, case: Case) -> int | None:
        t = case.values[self.of]
        return t.shape[self.dim] if self.dim < t.ndim else None


def partitions(base: Case) -> Iterator[Partition]:
    """Yield the whole numbers of an example that add up to a size of it, or end with it."""
    for p, t in enumerate(base.values):
        is_row = isinstance(t, Tensor) and t.ndim == 1 and t.numel() >= _TELLING and t.layout is torch.strided
        if not is_row or t.dtype == torch.bool or has_derivative(t):
            continue
        for q in base.wrt:
            for dim, size in enumerate(base.values[q].shape):
                for are_offsets in (False, True):
                    found = Partition(p, q, dim, are_offsets)
                    if size > 1 and (are_offsets or bool((t > 0).all())) and found.holds(base):
                        yield found
