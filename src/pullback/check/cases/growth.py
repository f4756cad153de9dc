"""The example at other sizes: how the shapes of the outputs follow a size, and the example repeated along it.

The repeated example has a number of elements that is not a multiple of a vector or a block, so that tails are computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.cases.sizes import resized
from pullback.check.cases.structure import is_structured
from pullback.check.subject import Subject
from pullback.check.trial import Raised, forward

Shape = tuple[int, ...]
# The first two sizes determine a n + b, the third tests it: n² gives 25 in place of 19, n // 2 gives 2 in place of 1.
_SAMPLES = (2, 3, 5)
_MOST_SIZES = 4


@dataclass(frozen=True)
class Growth:
    """Shapes that are linear in a size: dimension `d` of output `k` is `slopes[k][d] * n + offsets[k][d]`.

    Attributes:
        case: the example.
        size: size of the dimensions that are resized; every dimension of that size in the example.
        slopes, offsets: by output and dimension.
    """

    case: Case
    size: int
    slopes: tuple[Shape, ...]
    offsets: tuple[Shape, ...]

    def shapes(self, n: int) -> list[Shape] | None:
        """Shapes of the outputs at size `n`; `None` if a dimension would be negative."""
        found = [
            tuple(a * n + b for a, b in zip(slope, offset, strict=True))
            for slope, offset in zip(self.slopes, self.offsets, strict=True)
        ]
        return None if any(size < 0 for shape in found for size in shape) else found

    def at(self, n: int) -> Case:
        """Return the example at size `n`."""
        return self.case if n == self.size else resized(self.case, {self.size: n})

    def dims(self, output: int) -> list[int]:
        """The dimensions of an output that are equal to the size."""
        laws = zip(self.slopes[output], self.offsets[output], strict=True)
        return [dim for dim, law in enumerate(laws) if law == (1, 0)]

    @property
    def is_batch(self) -> bool:
        """Whether the first tensor and every output begin with that size, and no later dimension has it."""
        tensors = list(self.case.all_tensors.values())
        is_later = any(self.size in t.shape[1:] for t in tensors)
        outputs = range(len(self.slopes))
        return tensors[0].shape[:1] == (self.size,) and not is_later and all(0 in self.dims(k) for k in outputs)


def growths(subject: Subject, case: Case) -> Iterator[Growth]:
    """Yield the growth with each input size that can be changed."""
    present = sorted(case.sizes - {1})
    for size in present[:_MOST_SIZES]:
        if any(size in v.shape and is_structured(v) for v in case.tensors):
            continue
        found = _growth(subject, case, size)
        if found is not None:
            yield found


def _growth(subject: Subject, case: Case, size: int) -> Growth | None:
    cases = [case if n == size else resized(case, {size: n}) for n in _SAMPLES]
    if any(c.doubtful for c in cases):
        return None
    try:
        first, second, third = ([out.shape for out in forward(subject, c).outputs] for c in cases)
    except Raised:
        return None
    if [len(shape) for shape in first] != [len(shape) for shape in second]:
        return None
    slopes = tuple(_combined(b, a, -1) for a, b in zip(first, second, strict=True))
    offsets = tuple(_combined(a, slope, -_SAMPLES[0]) for a, slope in zip(first, slopes, strict=True))
    found = Growth(case, size, slopes, offsets)
    return found if found.shapes(_SAMPLES[2]) == [tuple(shape) for shape in third] else None


def _combined(a: Shape | torch.Size, b: Shape | torch.Size, factor: int) -> Shape:
    return tuple(x + factor * y for x, y in zip(a, b, strict=True))


Index = tuple[int, ...]
_POWERS = (1024, 256, 64)
_MOST_ELEMENTS = 100_000


def tail_size(size: int, tensors: Iterable[Tensor], fast: bool = True) -> int:
    """A length that is not a multiple of any power-of-two block size, however `size` is repeated.

    The tail of a block longer than `size` holds each element of the period at least once: a function that takes
    blocks together on purpose, as one that scales each by its largest element, is periodic still. For that the length
    is one less than a power of two; where `size` is a power of two itself, it is less by `size`.

    Args:
        size: the period.
        tensors: those of the example, which get no more than a hundred thousand elements each, if 64 allows that.
        fast: whether a forward takes so little time that many elements may be had.
    """
    # 2ᵏ − 1 is odd. For a size of 2ʲ, 2ᵏ − 2ʲ = 2ʲ (2ᵏ⁻ʲ − 1) is a multiple of 2ʲ, and of no higher power of two.
    counts = [(t.numel(), len(dims_of(t, size))) for t in tensors]
    powers = [p for p in (_POWERS if fast else _POWERS[-1:]) if p > size] or [1 << (2 * size).bit_length()]
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


def broken_tail(t: Tensor, dims: Sequence[int], size: int, tolerance: float) -> tuple[Index, Index] | None:
    """Where a tail begins that differs from the elements one period earlier, and the position of those.

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
        kept = (later == earlier) | (later.isnan() & earlier.isnan()) | ((later - earlier).abs() <= tolerance * scale)
        broken = (~kept).movedim(dim, 0)
        if not broken.numel():
            continue
        differing = broken.reshape(len(broken), -1).any(1)
        before = int(differing.int().argmax())
        period = differing[before : before + size]
        if 2 * (before + size) >= t.shape[dim] and int(period.sum()) >= max(2, len(period) / 2):
            rest = broken[before].nonzero()[0].tolist()
            return _index(dim, before + size, rest), _index(dim, before, rest)
    return None


def _index(dim: int, place: int, rest: list[int]) -> Index:
    return (*rest[:dim], place, *rest[dim:])
