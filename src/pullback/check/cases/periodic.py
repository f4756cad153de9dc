"""The example repeated along one size, to a number of elements that is no multiple of a vector or a block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pullback.check.case import Case

Index = tuple[int, ...]
_POWERS = (1024, 256, 64)
_MOST_ELEMENTS = 100_000


def tail_size(size: int, tensors: Iterable[Tensor], fast: bool = True) -> int:
    """Return a length that leaves a tail to every block whose length is a power of two, however `size` is repeated.

    The tail of a block longer than `size` holds each element of the period at least once: a function that takes
    blocks together on purpose, as one that scales each by its largest element, is periodic still. For that the length
    is one less than a power of two; where `size` is a power of two itself, it is less by `size`.

    Args:
        size: the period.
        tensors: those of the example, which get no more than a hundred thousand elements each, if 64 allows that.
        fast: whether a forward takes so little time that many elements may be had.
    """
    counts = [(t.numel(), len(dims_of(t, size))) for t in tensors]
    powers = _POWERS if fast else _POWERS[-1:]
    fitting = (p for p in powers if all(n * (p / size) ** dims <= _MOST_ELEMENTS for n, dims in counts))
    power = next(fitting, powers[-1])
    return power - (size if size & (size - 1) == 0 else 1)


def repeated(case: Case, size: int, n: int) -> Case:
    """Return the case with each dimension of `size` repeated in order to `n`; whole-number arguments stay."""
    order = torch.arange(n) % size
    return case.map_tensors(lambda t: taken(t, dims_of(t, size), order), f"size {size} -> {n}, repeated")


def reordered(case: Case, size: int, order: Tensor) -> Case:
    """Return the case with the elements along each dimension of `size` in another order."""
    return case.map_tensors(lambda t: taken(t, dims_of(t, size), order), "in another order")


def dims_of(t: Tensor, size: int) -> list[int]:
    """Return the dimensions of a size."""
    return [dim for dim, length in enumerate(t.shape) if length == size]


def taken(t: Tensor, dims: Sequence[int], order: Tensor) -> Tensor:
    """Return the elements at `order` along each of some dimensions."""
    for dim in dims:
        t = t.index_select(dim, order)
    return t


def broken_tail(t: Tensor, dims: Sequence[int], size: int, same: float) -> tuple[Index, Index] | None:
    """Return where a tail begins that differs from the elements one period before, and the position of these.

    A tail begins in the second half: what breaks off earlier takes elements together by blocks. It breaks at half of
    its first period or more, in two places at least: where one of several equal elements is chosen, as by `argmax`, one
    alone differs.

    Args:
        t: the tensor that should be periodic.
        dims: along which dimensions.
        size: the period.
        same: difference that counts as none, relative to the largest element.
    """
    scale = torch.where(torch.isfinite(t), t, 0).abs().max()
    for dim in dims:
        later, earlier = t.narrow(dim, size, t.shape[dim] - size), t.narrow(dim, 0, t.shape[dim] - size)
        kept = (later == earlier) | (later.isnan() & earlier.isnan()) | ((later - earlier).abs() <= same * scale)
        broken = (~kept).movedim(dim, 0)
        places = broken.reshape(len(broken), -1).any(1)
        before = int(places.int().argmax())
        period = places[before : before + size]
        if 2 * (before + size) >= t.shape[dim] and int(period.sum()) >= max(2, len(period) / 2):
            rest = broken[before].nonzero()[0].tolist()
            return _index(dim, before + size, rest), _index(dim, before, rest)
    return None


def _index(dim: int, place: int, rest: list[int]) -> Index:
    return (*rest[:dim], place, *rest[dim:])
