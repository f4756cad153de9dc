"""A loss computed with its gradient by chunks of rows, so that large values exist for one chunk at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.bind.again import gradient_of
from pullback.bind.kept import as_kept, kind_of
from pullback.chunked.gradient import Gradient, gradients_of, value_and_gradient
from pullback.chunked.loop import Chunks, Slopes
from pullback.derived import is_watched


def run(chunks: Chunks, tensors: Sequence[Tensor]) -> Tensor:
    """Carry out one call."""
    result: Tensor
    if chunks.slopes is not None:
        result = _apply(chunks, chunks.slopes, *tensors)
        return result
    with torch.no_grad():
        shared, rows = chunks.given(tensors)
        result = chunks.after(*chunks.plain_sums(shared, rows), *shared)[0]
    return result


class _Chunked(torch.autograd.Function):
    """The value by chunks, with the gradient; a second backward computes it again. Higher orders: the formula."""

    @staticmethod
    def forward(ctx: Any, chunks: Chunks, slopes: Slopes, *tensors: Tensor) -> Tensor:
        value, found = value_and_gradient(chunks, slopes, tensors)
        ctx.chunks, ctx.slopes, ctx.found = chunks, slopes, [found]
        ctx.set_materialize_grads(False)
        ctx.kinds = list(map(kind_of, tensors))
        ctx.save_for_backward(*tensors)
        return value

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
        if g is None:
            return (None,) * len(ctx.needs_input_grad)
        chunks, slopes, tensors = ctx.chunks, ctx.slopes, ctx.saved_tensors
        if not torch.compiler.is_compiling():
            tensors = as_kept(chunks.name, tensors, ctx.kinds)
        recorded = torch.is_grad_enabled() or (not torch.compiler.is_compiling() and _torch.in_functorch())
        gradients: Sequence[Tensor | None]
        if recorded or is_watched([g]):
            gradients = gradient_of(chunks.native, slopes.wanted, [0], len(tensors))(*tensors, g)
        else:
            try:
                found = ctx.found.pop()
            except IndexError:
                _, found = value_and_gradient(chunks, slopes, tensors)
            gradients = gradients_of(chunks, slopes, found, tensors, g)
        by_argument: list[Tensor | None] = [None] * (2 + len(tensors))
        for i, gradient in zip(slopes.wanted, gradients, strict=True):
            by_argument[2 + i] = gradient
        return tuple(by_argument)


_apply = _torch.plain_apply(_Chunked)


def kept_by(node: Any) -> list[Tensor]:
    """Return the gradients that the node of a call keeps for its backward."""
    found: Sequence[Gradient] = getattr(node, "found", ())
    return [t for of in found for t in (*of.shared, *of.rows, *of.sums) if t is not None]
