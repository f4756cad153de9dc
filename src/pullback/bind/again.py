"""The gradient of an op as a formula: where autograd records a backward, it is carried out as an op is.

Its own gradient is one more such formula, and so on: there is a backward of every order, made when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pullback.graph.facts import Flat


def gradient_of(
    native: Flat, wanted: Sequence[int], connected: Sequence[int], n_inputs: int
) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return the vjp of a formula: its tensors and the cotangents of its connected outputs to the wanted gradients.

    Each input enters as a separate alias: if one input was computed from another, the gradient of the first must
    exclude the path through the second, which the engine adds.
    """

    def gradient(*given: Tensor) -> tuple[Tensor | None, ...]:
        inputs, cotangents = given[:n_inputs], given[n_inputs:]
        record = torch.is_grad_enabled()
        with torch.enable_grad():
            aliases = [_alias(x, i in wanted) for i, x in enumerate(inputs)]
            outputs = [out for out in native(*aliases) if isinstance(out, Tensor)]
            return tuple(
                torch.autograd.grad(
                    [outputs[i] for i in connected],
                    [aliases[i] for i in wanted],
                    cotangents,
                    create_graph=record,
                    allow_unused=True,
                )
            )

    return gradient


def picked(gradients: Callable[..., list[Tensor]], wanted: Sequence[int]) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return a function that gives some of the gradients that another gives."""

    def some(*given: Tensor) -> tuple[Tensor | None, ...]:
        every = gradients(*given)
        return tuple([every[i] for i in wanted])

    return some


def _alias(x: Tensor, wanted: bool) -> Tensor:
    if x.requires_grad:
        return x[...]
    return x.detach().requires_grad_() if wanted else x


Run = Callable[[Sequence[Tensor]], Sequence[Tensor | None] | None]
"""Computes gradients from inputs and cotangents; `None` where it cannot, and native ops have to."""
