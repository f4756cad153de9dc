"""Values at which derivative rules have branches: exact zeros, ties, constant and equal rows, degenerate matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

Change = Callable[[Tensor], Tensor]


def _zeros(count: int) -> Change:
    """Set as many elements, spread over the tensor, to zero."""

    def change(t: Tensor) -> Tensor:
        flat = t.detach().clone().reshape(-1)
        if flat.numel() >= count:
            flat[torch.linspace(0, flat.numel() - 1, count + 2).round().long()[1:-1]] = 0
        return flat.view(t.shape)

    return change


def _tie(t: Tensor) -> Tensor:
    """Give the first two elements of each row one value."""
    tied = t.detach().clone()
    if tied.ndim and tied.shape[-1] > 1:
        tied[..., 1] = tied[..., 0]
    return tied


def _constant_rows(t: Tensor) -> Tensor:
    return t[..., :1].expand_as(t).clone() if t.ndim else t


def _equal_rows(t: Tensor) -> Tensor:
    return t[..., :1, :].expand_as(t).clone() if t.ndim > 1 else t


def _scalar_matrix(t: Tensor) -> Tensor:
    """A multiple of the identity: all its singular values and eigenvalues are equal."""
    if t.ndim < 2 or t.shape[-1] != t.shape[-2]:
        return t
    return torch.eye(t.shape[-1], dtype=t.dtype).expand_as(t) * 1.5


BRANCH_POINTS: dict[str, Change] = {
    "one zero": _zeros(1),
    "two zeros": _zeros(2),
    "three zeros": _zeros(3),
    "all zeros": torch.zeros_like,
    "all ones": torch.ones_like,
    "a tie": _tie,
    "constant rows": _constant_rows,
    "equal rows": _equal_rows,
    "multiples of the identity": _scalar_matrix,
}
"""Changes of a tensor by their labels; one that cannot be made leaves it as it is."""


def at_branch_points(tensors: list[Tensor]) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield the tensors changed together, by each change that changes one of them."""
    for label, change in BRANCH_POINTS.items():
        changed = [change(t) for t in tensors]
        if any(not torch.equal(a, b) for a, b in zip(changed, tensors, strict=True)):
            yield label, changed
