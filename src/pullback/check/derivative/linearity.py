"""Whether a backward is linear in the cotangent, tested on itself: no finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.derivative.agreement import TensorDifference, difference, gradients
from pullback.check.subject import Subject
from pullback.check.trial import standard_cotangents

Gradients = Sequence[Tensor | None]
_CANCELLED = 64.0
"""Units in the last place of the cotangent: a gradient below that is the residue of cancelling terms."""


def nonlinearity(
    subject: Subject, case: Case, roots: Sequence[Tensor], beat: Callable[[], None]
) -> tuple[str, TensorDifference] | None:
    """Return the law of linearity that the backward breaks, and where; `None` if it keeps all.

    Raises:
        Raised: if forward or backward raises.
    """
    g, h = standard_cotangents(roots), [_zero_sum(root) for root in roots]

    floor = _CANCELLED * max((torch.finfo(a.dtype).eps * float(a.abs().max()) for a in g if a.numel()), default=0.0)

    def backward(cotangents: Sequence[Tensor]) -> list[Tensor | None]:
        beat()
        return gradients(subject, case, cotangents)

    of_g, of_h = backward(g), backward(h)
    laws = (
        ("b(4 g) = 4 b(g)", _combine(4, of_g, 0, of_g), backward([4 * a for a in g])),
        ("b(-g) = -b(g)", _combine(-1, of_g, 0, of_g), backward([-a for a in g])),
        ("b(g + h) = b(g) + b(h)", _combine(1, of_g, 1, of_h), backward([a + b for a, b in zip(g, h, strict=True)])),
        ("b(0) = 0", _combine(0, of_g, 0, of_g), backward([0 * a for a in g])),
    )  # fmt: skip
    for law, expected, got in laws:
        where = difference(expected, got, floor=floor)
        if where is not None:
            return law, where
    return None


def _zero_sum(root: Tensor) -> Tensor:
    """Return a cotangent of alternating signs whose sum is exactly 0, but which is not 0 itself."""
    signs = 1 - 2 * (torch.arange(root.numel()) % 2)
    if root.numel() % 2:
        signs[-1] = 0
    return signs.reshape(root.shape).to(root.dtype)


def _combine(a: float, first: Gradients, b: float, second: Gradients) -> list[Tensor | None]:
    return [
        None if x is None or y is None else (a * x + b * y if b else a * x) for x, y in zip(first, second, strict=True)
    ]
