"""The fifth part of the labels: packages that were chosen and read when the audit was done.

They were chosen by field, before anything was known of them but that they hold custom functions and install as pure
Python. Here is what their proofs share beside `labels.fresh` and `labels.blind`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from labels.fresh import Make, called, differences, far, linear, prepared, raises


def derivative_of_backward_is_wrong(make: Make, position: int = 0, tolerance: float = 0.01) -> bool:
    """Whether the gradients, at a fixed cotangent, have another derivative than their differences; nothing is said."""
    function, arguments, which = prepared(make)

    def first(x: Tensor, create_graph: bool) -> tuple[Tensor, Tensor]:
        given = [x.detach().clone() if i == which[position] else a for i, a in enumerate(arguments)]
        leaves = [given[i].requires_grad_() for i in which]
        # The square of the arguments keeps a graph where the function itself loses it.
        value = linear([y for y in called(function, given) if y.requires_grad])
        value = value + torch.stack([leaf.square().sum() for leaf in leaves]).sum()
        return leaves[position], linear(torch.autograd.grad(value, leaves, create_graph=create_graph), 3)

    leaf, number = first(arguments[which[position]], True)
    (found,) = torch.autograd.grad(number, leaf)
    squares = [2 * leaf if i == position else torch.zeros_like(arguments[j]) for i, j in enumerate(which)]
    (added,) = torch.autograd.grad(linear(squares, 3), leaf)
    expected = differences(lambda x: first(x, False)[1], arguments[which[position]]) - added
    return far(found - added, expected, tolerance) and bool(expected.abs().max() > 1e-5)


def gradients_of(make: Make, cotangent: Callable[[Tensor], Tensor]) -> list[Tensor | None]:
    """The gradients at cotangents that `cotangent(output)` makes."""
    function, arguments, which = prepared(make)
    leaves = [arguments[i].requires_grad_() for i in which]
    outputs = called(function, arguments)
    return list(torch.autograd.grad(outputs, leaves, [cotangent(y) for y in outputs], allow_unused=True))


def cotangent_is_changed(make: Make) -> bool:
    """Whether the backward writes to its cotangent."""
    kept: list[tuple[Tensor, Tensor]] = []

    def cotangent(y: Tensor) -> Tensor:
        kept.append((torch.ones_like(y), torch.ones_like(y)))
        return kept[-1][0]

    gradients_of(make, cotangent)
    return any(not torch.equal(*pair) for pair in kept)


def expanded_cotangent_differs(make: Make) -> bool:
    """Whether ones that are expanded from a single number, as `sum()` hands them in, silently give other gradients."""
    expanded = gradients_of(make, lambda y: torch.ones((), dtype=y.dtype).expand(y.shape))
    plain = gradients_of(make, torch.ones_like)
    return any(b is not None and far(a, b, 0.01) for a, b in zip(expanded, plain, strict=True))


def transposed_cotangent_raises(make: Make, *texts: str) -> bool:
    """Whether cotangents whose first and last dimension were swapped in memory make the backward fail."""
    gradients_of(make, torch.ones_like)

    def cotangent(y: Tensor) -> Tensor:
        return torch.ones_like(y).transpose(0, -1).contiguous().transpose(0, -1)

    return raises(lambda: gradients_of(make, cotangent), *texts)


def second_backward_raises(make: Make, *texts: str, dtype: torch.dtype | None = torch.float64) -> bool:
    """Whether a second backward over a retained graph, of a multiple of the outputs, fails."""
    function, arguments, which = prepared(make, dtype)
    leaves = [arguments[i].requires_grad_() for i in which]
    value = 3 * linear(called(function, arguments))
    torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
    return raises(lambda: torch.autograd.grad(value, leaves, allow_unused=True), *texts)
