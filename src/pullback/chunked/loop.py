"""A loss by chunks of rows: the loop over the rows, its gradient in the same pass, and the autograd Function.

A loss L = h(S(x), w), where S sums over rows and w is shared by all of them, has ∂L/∂xᵢ = ∂h/∂S · ∂Sᵢ/∂xᵢ: the gradient
of a chunk of rows needs the sums over all of them only in the factor ∂h/∂S. So one pass computes the sums and their
gradients chunk by chunk, and large intermediates (logits) exist for one chunk at a time. Where ∂h/∂S depends on sums,
these are computed first, in a pass without gradients; where there is a single sum, its gradient is taken with
cotangent 1 and scaled at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback import _torch, dispatch
from pullback.chunked.row_proof import RowSplit, wide
from pullback.chunked.step import ChunkStep
from pullback.dispatch import World
from pullback.graph.facts import Flat
from pullback.kernel_function import are_observed, as_saved, layout_of
from pullback.plan import vjp_by_autograd

Lowered = Callable[..., list[Any]]


@dataclass(frozen=True, slots=True)
class Differentiation:
    """Differentiation of a call.

    Attributes:
        steps: step for each number of rows.
        ahead: the sums that the derivatives of the result by sums depend on, which are computed first.
        alone: whether there is one sum, which is differentiated with cotangent 1 instead.
        sums: the positions of those that are differentiated.
        shared, rows: the positions of the values that are.
        wanted: positions of the inputs that get a gradient.
        direct: whether the result depends on shared values in another way than by sums.
        narrow: whether any of this has 16 bits.
    """

    steps: dict[int, ChunkStep]
    ahead: tuple[int, ...]
    alone: bool
    sums: tuple[int, ...]
    shared: tuple[int, ...]
    rows: tuple[int, ...]
    wanted: tuple[int, ...]
    direct: bool
    narrow: bool


@dataclass(frozen=True, slots=True)
class ChunkedLoss:
    """A loss that runs by chunks, ready to call.

    Attributes:
        name: name of the op.
        split: the formula.
        size: number of rows of a chunk.
        composite: the formula on the tensors of a call, for higher derivatives.
        before, after: halves of the split.
        sums: shape and dtype of each.
        plain: returns kernels for the sums without gradients, by number of rows: `ahead` of them, or all.
        differentiation: what a differentiated call needs besides.
    """

    name: str
    split: RowSplit
    size: int
    composite: Flat
    before: Lowered
    after: Lowered
    sums: tuple[tuple[torch.Size, torch.dtype], ...]
    plain: dict[int, ChunkStep]
    differentiation: Differentiation | None = None

    def given(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the shared values, and the values with rows."""
        made = self.before(*tensors)
        n = self.split.n_shared
        return made[:n], [*(tensors[i] for i in self.split.inputs), *made[n:]]

    def chunks(
        self, steps: dict[int, ChunkStep], rows: Sequence[Tensor]
    ) -> Iterator[tuple[ChunkStep, slice, list[Tensor], list[Tensor]]]:
        """Iterate over the chunks: the step, the slice of its rows, these rows, and scratch memory."""
        last, space = None, list[Tensor]()
        for start in range(0, self.split.rows, self.size):
            here = slice(start, min(start + self.size, self.split.rows))
            step = steps[here.stop - here.start]
            if step is not last:
                space.clear()
                last, space = step, [slot.empty() for slot in step.slots]
            yield step, here, [x[here] for x in rows], space

    def plain_sums(self, shared: Sequence[Tensor], rows: Sequence[Tensor]) -> list[Tensor]:
        """Return sums over all rows without a gradient."""
        totals: list[Tensor] = []
        for step, _, parts, space in self.chunks(self.plain, rows):
            totals = added(totals, step.run(*shared, *parts, *space))
        return totals


def added(totals: Sequence[Tensor], parts: Sequence[Tensor]) -> list[Tensor]:
    """Add the sums of a chunk to the totals; 16-bit sums are added in float32."""
    parts = [part.to(wide(part.dtype)) for part in parts]
    return [total + part for total, part in zip(totals, parts, strict=True)] if totals else parts


@dataclass(slots=True)
class UnscaledGradient:
    """UnscaledGradient of one call before it is scaled by the cotangent; it belongs to its caller.

    Attributes:
        shared: gradient of each differentiated shared value, where sums depend on it.
        rows: gradient of each differentiated value with rows.
        sums: the sums over all rows.
        scale: a factor still to be applied to both gradients.
    """

    shared: list[Tensor | None]
    rows: list[Tensor | None]
    sums: list[Tensor]
    scale: Tensor | None = None


def value_and_gradient(
    chunks: ChunkedLoss, differentiation: Differentiation, tensors: Sequence[Tensor]
) -> tuple[Tensor, UnscaledGradient]:
    """Compute both in one pass over the rows, after a pass for the sums on which the gradient depends."""
    # The gradient of a chunk is linear in the cotangents s = ∂h/∂S of its sums. With a single sum S of one number it is
    # s · ∂S/∂x, so s may come last, when S is known: one pass. In 16 bits small s would underflow in the chunks, so
    # there s / max |s| goes in, and max |s| is applied with the cotangent of the loss, in float32.
    shared, rows = chunks.given(tensors)
    dtypes = [chunks.sums[i][1] for i in differentiation.sums]
    if differentiation.alone:
        one = torch.ones(chunks.sums[differentiation.sums[0]][0], dtype=dtypes[0], device=rows[0].device)
        found = _pass(chunks, differentiation, shared, rows, [one])
        (slope,) = _derivatives(chunks, differentiation, found.sums, shared)
        if bool(slope.isfinite()):
            found.scale = slope.reshape(())
        else:  # 0 · ∞ would be NaN where the formula masks the term
            found = _pass(chunks, differentiation, shared, rows, [slope.to(dtypes[0])])
    else:
        sums = [torch.ones(shape, dtype=wide(dtype), device=rows[0].device) for shape, dtype in chunks.sums]
        if differentiation.ahead:
            for i, known in zip(differentiation.ahead, chunks.plain_sums(shared, rows), strict=True):
                sums[i] = known
        scales, scale = _derivatives(chunks, differentiation, sums, shared), None
        if differentiation.narrow and scales:
            scale = _size_of(scales)
            scales = [s / scale for s in scales]
        found = _pass(chunks, differentiation, shared, rows, [s.to(d) for s, d in zip(scales, dtypes, strict=True)])
        found.scale = scale
    value: Tensor = chunks.after(*found.sums, *shared)[0]
    return value.clone(), found  # the saved sum must not alias the result


def _pass(
    chunks: ChunkedLoss,
    differentiation: Differentiation,
    shared: Sequence[Tensor],
    rows: Sequence[Tensor],
    cotangents: Sequence[Tensor],
) -> UnscaledGradient:
    first = differentiation.steps[min(chunks.size, chunks.split.rows)]
    buffers = [
        None if transposed is None else _zeros(shared[i], transposed)
        for i, transposed in zip(differentiation.shared, first.transposed, strict=True)
    ]
    found = UnscaledGradient(buffers, [], [])
    for step, here, parts, space in chunks.chunks(differentiation.steps, rows):
        pairs = zip(buffers, step.transposed, strict=True)
        given = [b.t() if transposed else b for b, transposed in pairs if b is not None]
        results = step.run(*shared, *parts, *cotangents, *given, *space)
        n = len(chunks.sums)
        found.sums = added(found.sums, results[:n])
        gradients = results[n : n + len(differentiation.rows)]
        if not found.rows:
            found.rows = [
                None if g is None else torch.empty_like(rows[i])
                for i, g in zip(differentiation.rows, gradients, strict=True)
            ]
        for whole, g in zip(found.rows, gradients, strict=True):
            if whole is not None:
                whole[here] = g
    return found


def _zeros(x: Tensor, transposed: bool) -> Tensor:
    shape = x.shape[::-1] if transposed else x.shape
    zeros = torch.zeros(shape, dtype=wide(x.dtype), device=x.device)
    return zeros.t() if transposed else zeros


def _derivatives(
    chunks: ChunkedLoss, differentiation: Differentiation, sums: Sequence[Tensor], shared: Sequence[Tensor]
) -> list[Tensor]:
    """Return the derivatives of the result by the sums that are differentiated."""
    leaves = [s.detach().requires_grad_() if i in differentiation.sums else s for i, s in enumerate(sums)]
    with torch.enable_grad():
        result = chunks.after(*leaves, *(x.detach() for x in shared))[0]
        live = [leaves[i] for i in differentiation.sums]
        found = torch.autograd.grad(result, live, allow_unused=True) if result.requires_grad else [None] * len(live)
    return [torch.zeros_like(s) if g is None else g for s, g in zip(live, found, strict=True)]


def _size_of(scales: Sequence[Tensor]) -> Tensor:
    """Return the largest magnitude of the factors, so that gradients in 16 bits do not underflow; 1 if it is 0 or ∞."""
    largest = torch.stack([s.abs().amax() for s in scales]).amax()
    return torch.where(largest.isfinite() & (largest > 0), largest, torch.ones_like(largest))


def gradients_of(
    chunks: ChunkedLoss, differentiation: Differentiation, found: UnscaledGradient, tensors: Sequence[Tensor], g: Tensor
) -> list[Tensor | None]:
    """Return the gradients of the wanted inputs; `found` is overwritten."""
    g = g.reshape(())
    factor = g.to(wide(g.dtype))
    factor = factor if found.scale is None else factor * found.scale
    by_input: dict[int, Tensor | None] = {}
    inputs = chunks.split.inputs
    for i, rows in zip(differentiation.rows, found.rows, strict=True):
        by_input[inputs[i]] = None if rows is None else _scaled(rows, factor, rows.dtype)
    leaves = [x.detach().requires_grad_(i in differentiation.wanted and i not in inputs) for i, x in enumerate(tensors)]
    others = [i for i, x in enumerate(leaves) if x.requires_grad]
    if others:
        with torch.enable_grad():
            shared = chunks.before(*leaves)[: chunks.split.n_shared]
            pairs = [(shared[i], b) for i, b in zip(differentiation.shared, found.shared, strict=True) if b is not None]
            roots = [root for root, _ in pairs]
            cotangents = [_scaled(b, factor, root.dtype) for root, b in pairs]
            if differentiation.direct:
                result = chunks.after(*found.sums, *shared)[0]
                roots, cotangents = [*roots, result], [*cotangents, g.to(result.dtype).reshape(result.shape)]
            given = torch.autograd.grad(roots, [leaves[i] for i in others], cotangents, allow_unused=True)
        by_input |= {i: _laid_out(g, tensors[i]) for i, g in zip(others, given, strict=True)}
    return [by_input[i] for i in differentiation.wanted]


def _laid_out(g: Tensor | None, x: Tensor) -> Tensor | None:
    return g.contiguous() if g is not None and x.is_contiguous() else g


def _scaled(x: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """Multiply in place, in float32 if x has 16 bits, and return it in a dtype."""
    return x.to(wide(x.dtype)).mul_(factor).to(dtype)


def run(chunks: ChunkedLoss, tensors: Sequence[Tensor]) -> Tensor:
    """Carry out one call."""
    result: Tensor
    if chunks.differentiation is not None:
        result = _apply(chunks, chunks.differentiation, *tensors)
        return result
    with torch.no_grad():
        shared, rows = chunks.given(tensors)
        result = chunks.after(*chunks.plain_sums(shared, rows), *shared)[0]
    return result


class _ChunkedFunction(torch.autograd.Function):
    """The value by chunks, with its gradient.

    A second backward recomputes the gradient; higher orders differentiate the formula.
    """

    @staticmethod
    def forward(ctx: Any, chunks: ChunkedLoss, differentiation: Differentiation, *tensors: Tensor) -> Tensor:
        value, found = value_and_gradient(chunks, differentiation, tensors)
        ctx.chunks, ctx.differentiation, ctx.found = chunks, differentiation, [found]
        ctx.set_materialize_grads(False)
        ctx.layouts = list(map(layout_of, tensors))
        ctx.save_for_backward(*tensors)
        return value

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
        if g is None:
            return (None,) * len(ctx.needs_input_grad)
        chunks, differentiation, tensors = ctx.chunks, ctx.differentiation, ctx.saved_tensors
        world = dispatch.world()
        if not world.is_compiling:
            tensors = as_saved(chunks.name, tensors, ctx.layouts)
        recorded = torch.is_grad_enabled() or (not world.is_compiling and _torch.in_functorch())
        gradients: Sequence[Tensor | None]
        if recorded or world is not World.EAGER or are_observed([g]):
            gradients = vjp_by_autograd(chunks.composite, differentiation.wanted, [0], len(tensors))(*tensors, g)
        else:
            try:
                found = ctx.found.pop()
            except IndexError:
                _, found = value_and_gradient(chunks, differentiation, tensors)
            gradients = gradients_of(chunks, differentiation, found, tensors, g)
        by_argument: list[Tensor | None] = [None] * (2 + len(tensors))
        for i, gradient in zip(differentiation.wanted, gradients, strict=True):
            by_argument[2 + i] = gradient
        return tuple(by_argument)


_apply = _torch.eager_apply(_ChunkedFunction)


def held_gradients(node: Any) -> list[Tensor]:
    """Return the gradients that the node of a call holds for its backward."""
    found: Sequence[UnscaledGradient] = getattr(node, "found", ())
    return [t for of in found for t in (*of.shared, *of.rows, *of.sums) if t is not None]
