"""Structure in the tensors of an example that variants keep: special matrices, permutations, partitions of a size."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.dtypes import has_integers, is_opaque


def is_structured(t: Tensor) -> bool:
    """Whether a tensor has a structure that changing single elements would destroy.

    That is a tensor for which `is_fixed` is true, a symmetric matrix, or rows of length 1 or of sum 1: a forward may
    rely on it without a check, and its value elsewhere is meaningless.
    """
    if t.ndim < 1 or t.numel() < 2 or t.shape[-1] < 2 or is_opaque(t):
        return False
    if is_fixed(t) or (t.ndim >= 2 and t.shape[-1] == t.shape[-2] and torch.allclose(t, t.mH)):
        return True
    sums = t.sum(-1)
    return torch.allclose(sums, torch.ones_like(sums)) or has_unit_rows(t)


def has_unit_rows(t: Tensor) -> bool:
    """Whether each row, of two numbers or more, has length 1, up to the rounding of 16 bits."""
    lengths = t.abs().square().sum(-1) if t.ndim and t.shape[-1] > 1 else t.new_zeros(())
    return torch.allclose(lengths, torch.ones_like(lengths), rtol=1e-3)


def is_fixed(t: Tensor) -> bool:
    """Whether a tensor holds only zeros and ones, or is a triangular matrix: there are no other values of that kind."""
    if t.ndim < 1 or t.numel() < 2 or t.shape[-1] < 2 or is_opaque(t):
        return False
    if bool(((t == 0) | (t == 1)).all()) and bool((t == 0).any() & (t == 1).any()):
        return True
    square = t.ndim >= 2 and t.shape[-1] == t.shape[-2]
    return square and not (bool(t.triu(1).any()) and bool(t.tril(-1).any()))


def is_permutation(t: Tensor) -> bool:
    """Whether each row or column holds every index once: an inverse of it may be among the arguments."""
    if not t.ndim or t.numel() < 2 or t.dtype == torch.bool or is_opaque(t):
        return False
    for dim in range(t.ndim):
        indices = torch.arange(t.shape[dim], dtype=t.dtype).reshape(-1, *(1 for _ in t.shape[dim + 1 :]))
        if t.shape[dim] > 1 and torch.equal(t.sort(dim).values, indices.expand_as(t)):
            return True
    return False


def are_distinct(value: object, fewest: int = 3) -> bool:
    """Whether an argument holds whole numbers that are all different, and enough of them to be no coincidence."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided or not has_integers(value):
        return False
    return value.numel() >= fewest and value.unique().numel() == value.numel()


def structured(case: Case) -> Iterator[Case]:
    """Yield the case with its square matrices made positive definite, lower triangular, symmetric."""
    square = [p for p in case.wrt if case.values[p].ndim >= 2 and case.values[p].shape[-1] == case.values[p].shape[-2]]
    makers: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
        ("positive definite matrices", lambda t: t @ t.mH / t.shape[-1] + torch.eye(t.shape[-1], dtype=t.dtype)),
        ("lower triangular matrices", lambda t: t.tril(-1) + torch.diag_embed(t.diagonal(0, -2, -1).abs() + 0.5)),
        ("symmetric matrices", lambda t: (t + t.mH) / 2),
    )
    for label, make in makers if square else ():
        yield case.with_values({p: make(case.values[p]) for p in square}, required_property=label)


NO_SIZE = re.compile(r"dim|axis|axes|iter|steps")
"""Matches names of whole numbers that are no sizes."""
NO_BOUND = re.compile(r"chunk|block|warps|stages|seed|rng", re.IGNORECASE)
"""Matches names of numbers that no size has to exceed: the length of a chunk, the last of which is not full; a seed."""
_SHORTEST = 3
"""Number of integers from which a matching sum is unlikely to be a coincidence."""
_LONGEST_PART = re.compile(r"max_?(seq|sequence)?_?len|longest", re.IGNORECASE)
"""Matches names of a bound on the lengths of parts."""


@dataclass(frozen=True)
class Partition:
    """Integers that partition a dimension: the lengths of its parts, or their offsets and the end.

    Attributes:
        whole: position of the whole numbers.
        of, dim: position of the tensor whose dimension they part, and that dimension.
        are_offsets: whether they are where the parts begin.
        bounds: positions of the whole numbers that no part is longer than, such as `max_seqlen`.
        held: those of the bounds that equal a size of a tensor, perhaps of one with a row for each index in a part.
    """

    whole: int
    of: int
    dim: int
    are_offsets: bool
    bounds: tuple[int, ...] = ()
    held: frozenset[int] = frozenset()

    def holds(self, case: Case) -> bool:
        """Whether they still partition it in a case, into parts that are not longer than the bounds."""
        return self._adds_up(case) and self.is_bounded(case)

    def is_bounded(self, case: Case) -> bool:
        """Whether no part is longer than the bounds."""
        return not self._exceeded(case)

    def restored(self, case: Case) -> Case | None:
        """The case with its bounds raised, and parts of about equal length if it had none; `None` without any.

        If a bound that is held cannot be kept, the case is doubtful.
        """
        t, size = case.values[self.whole], self._size(case)
        if self._adds_up(case) and self.held.isdisjoint(self._exceeded(case)):
            return self._bounded(case)
        if size is None or t.numel() <= self.are_offsets:
            return None
        parts = t.numel() - self.are_offsets
        # ⌊k size / parts⌋ for k = 0, …, parts rises from 0 to size, by steps that differ by at most 1.
        ends = torch.arange(parts + 1) * size // parts
        return self._bounded(case.with_values({self.whole: (ends if self.are_offsets else ends.diff()).to(t)}))

    def longest(self, case: Case) -> int:
        """The length of the longest part; 0 if there is none."""
        t = case.values[self.whole]
        lengths = t.diff() if self.are_offsets else t
        return int(lengths.max()) if lengths.numel() else 0

    def _adds_up(self, case: Case) -> bool:
        t, size = case.values[self.whole], self._size(case)
        if size is None or not t.numel():
            return False
        total = t[0] == 0 and t[-1] == size and bool((t.diff() >= 0).all()) if self.are_offsets else t.sum() == size
        return bool(total)

    def _exceeded(self, case: Case) -> set[int]:
        """Positions of the bounds that are less than the longest part."""
        if not self.bounds:
            return set()
        longest = self.longest(case)
        return {p for p in self.bounds if type(case.values[p]) is int and case.values[p] < longest}

    def _bounded(self, case: Case) -> Case:
        """The case with each bound at least the length of the longest part."""
        exceeded = self._exceeded(case)
        raised = dict.fromkeys(exceeded, self.longest(case))
        return case.with_values(raised, doubtful=case.doubtful or not self.held.isdisjoint(exceeded))

    def _size(self, case: Case) -> int | None:
        t = case.values[self.of]
        return t.shape[self.dim] if self.dim < t.ndim else None


def partitions(base: Case) -> Iterator[Partition]:
    """Yield the integer tensors of an example that sum to one of its sizes, or end with it."""
    for p, t in enumerate(base.values):
        is_row = isinstance(t, Tensor) and t.ndim == 1 and t.numel() >= _SHORTEST and t.layout is torch.strided
        if not is_row or t.dtype == torch.bool or not has_integers(t):
            continue
        for q in base.wrt:
            for dim, size in enumerate(base.values[q].shape):
                for are_offsets in (False, True):
                    found = Partition(p, q, dim, are_offsets)
                    if size > 1 and (are_offsets or bool((t > 0).all())) and found.holds(base):
                        yield _with_bounds(found, base)


def _with_bounds(partition: Partition, base: Case) -> Partition:
    """The partition with the whole numbers that bound its parts: by their names, or as long as the longest part.

    A number without such a name that is also the size of a tensor, or 1, is a coincidence.
    """
    longest, sizes = partition.longest(base), base.sizes
    numbers = {p: v for p, v in enumerate(base.values) if type(v) is int and v >= longest > 0}
    named = {p for p in numbers if _LONGEST_PART.search(base.names[p])}
    others = {p for p, v in numbers.items() if v == longest > 1 and v not in sizes}
    others = {p for p in others if not (NO_SIZE.search(base.names[p]) or NO_BOUND.search(base.names[p]))}
    held = frozenset(p for p in named if numbers[p] in sizes)
    return replace(partition, bounds=tuple(sorted(named | others)), held=held)
