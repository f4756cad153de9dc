"""How the shapes of the outputs follow one size of the inputs, as seen at a few sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.cases.sizes import resized
from pullback.check.cases.structure import is_structured
from pullback.check.subject import Subject
from pullback.check.trial import Raised, forward

Shape = tuple[int, ...]
_SAMPLES = (2, 3, 5)
_MOST_SIZES = 4


@dataclass(frozen=True)
class Growth:
    """Shapes that are linear in a size: dimension `d` of output `k` is `slopes[k][d] * n + offsets[k][d]`.

    Attributes:
        case: the example.
        size: of the dimensions that are resized; every dimension of that size in the example.
        slopes, offsets: by output and dimension.
    """

    case: Case
    size: int
    slopes: tuple[Shape, ...]
    offsets: tuple[Shape, ...]

    def shapes(self, n: int) -> list[Shape] | None:
        """Return the shapes of the outputs at size `n`; `None` if there are none, for want of elements."""
        found = [
            tuple(a * n + b for a, b in zip(slope, offset, strict=True))
            for slope, offset in zip(self.slopes, self.offsets, strict=True)
        ]
        return None if any(size < 0 for shape in found for size in shape) else found

    def at(self, n: int) -> Case:
        """Return the example at size `n`."""
        return self.case if n == self.size else resized(self.case, {self.size: n})

    def dims(self, output: int) -> list[int]:
        """Return the dimensions of an output that have the size itself."""
        laws = zip(self.slopes[output], self.offsets[output], strict=True)
        return [dim for dim, law in enumerate(laws) if law == (1, 0)]

    @property
    def is_batch(self) -> bool:
        """Whether the first tensor and every output begin with that size, and no later dimension has it."""
        tensors = [v for v in self.case.values if isinstance(v, Tensor)]
        elsewhere = any(self.size in t.shape[1:] for t in tensors)
        outputs = range(len(self.slopes))
        return tensors[0].shape[:1] == (self.size,) and not elsewhere and all(0 in self.dims(k) for k in outputs)


def growths(subject: Subject, case: Case) -> Iterator[Growth]:
    """Yield the growth with each size of the inputs that the function takes at other sizes too."""
    present = sorted({s for v in case.values if isinstance(v, Tensor) for s in v.shape if s > 1})
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
