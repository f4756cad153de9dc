"""A formula that runs by chunks of rows: its kernels, and the loop over the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback import _torch, dispatch
from pullback.chunked.step import Step
from pullback.dispatch import World
from pullback.graph.facts import Flat
from pullback.graph.rows import Split, wide
from pullback.kernel_function import are_observed, as_saved, layout_of
from pullback.plan import vjp_by_autograd

Run = Callable[..., list[Any]]


@dataclass(frozen=True, slots=True)
class Slopes:
    """How the gradient of a call is found.

    Attributes:
        steps: by number of rows.
        ahead: the sums that the derivatives of the result by sums depend on, which are computed first.
        alone: whether there is one sum, which is differentiated with cotangent 1 instead.
        sums: the positions of those that are differentiated.
        shared, rows: the positions of the values that are.
        wanted: positions of the inputs that get a gradient.
        direct: whether the result depends on shared values in another way than by sums.
        narrow: whether any of this has 16 bits.
    """

    steps: dict[int, Step]
    ahead: tuple[int, ...]
    alone: bool
    sums: tuple[int, ...]
    shared: tuple[int, ...]
    rows: tuple[int, ...]
    wanted: tuple[int, ...]
    direct: bool
    narrow: bool


@dataclass(frozen=True, slots=True)
class Chunks:
    """A formula that runs by chunks, ready to call.

    Attributes:
        name: of the op.
        split: the formula.
        size: number of rows of a chunk.
        native: the formula on the tensors of a call, for higher derivatives.
        before, after: of the split.
        sums: shape and dtype of each.
        plain: returns kernels for the sums without gradients, by number of rows: `ahead` of them, or all.
        slopes: of a differentiated call.
    """

    name: str
    split: Split
    size: int
    native: Flat
    before: Run
    after: Run
    sums: tuple[tuple[torch.Size, torch.dtype], ...]
    plain: dict[int, Step]
    slopes: Slopes | None = None

    def given(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the shared values, and the values with rows."""
        made = self.before(*tensors)
        n = self.split.n_shared
        return made[:n], [*(tensors[i] for i in self.split.inputs), *made[n:]]

    def chunks(
        self, steps: dict[int, Step], rows: Sequence[Tensor]
    ) -> Iterator[tuple[Step, slice, list[Tensor], list[Tensor]]]:
        """Go through the rows: the step, where its rows are, these, and memory for it."""
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
    """Add sums to those so far, 16 bits in 32."""
    parts = [part.to(wide(part.dtype)) for part in parts]
    return [total + part for total, part in zip(totals, parts, strict=True)] if totals else parts


@dataclass(slots=True)
class Gradient:
    """Gradient of one call before it is scaled by the cotangent; it belongs to its caller.

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


def value_and_gradient(chunks: Chunks, slopes: Slopes, tensors: Sequence[Tensor]) -> tuple[Tensor, Gradient]:
    """Compute both in one pass over the rows, after one for the sums that have to be known first."""
    shared, rows = chunks.given(tensors)
    dtypes = [chunks.sums[i][1] for i in slopes.sums]
    if slopes.alone:
        one = torch.ones(chunks.sums[slopes.sums[0]][0], dtype=dtypes[0], device=rows[0].device)
        found = _pass(chunks, slopes, shared, rows, [one])
        (slope,) = _derivatives(chunks, slopes, found.sums, shared)
        if bool(slope.isfinite()):
            found.scale = slope.reshape(())
        else:  # 0 · ∞ would be NaN where the formula masks the term
            found = _pass(chunks, slopes, shared, rows, [slope.to(dtypes[0])])
    else:
        sums = [torch.ones(shape, dtype=wide(dtype), device=rows[0].device) for shape, dtype in chunks.sums]
        if slopes.ahead:
            for i, known in zip(slopes.ahead, chunks.plain_sums(shared, rows), strict=True):
                sums[i] = known
        scales, scale = _derivatives(chunks, slopes, sums, shared), None
        if slopes.narrow and scales:
            scale = _size_of(scales)
            scales = [s / scale for s in scales]
        found = _pass(chunks, slopes, shared, rows, [s.to(d) for s, d in zip(scales, dtypes, strict=True)])
        found.scale = scale
    value: Tensor = chunks.after(*found.sums, *shared)[0]
    return value.clone(), found  # the saved sum must not alias the result


def _pass(
    chunks: Chunks, slopes: Slopes, shared: Sequence[Tensor], rows: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> Gradient:
    first = slopes.steps[min(chunks.size, chunks.split.rows)]
    buffers = [
        None if turned is None else _zeros(shared[i], turned)
        for i, turned in zip(slopes.shared, first.turned, strict=True)
    ]
    found = Gradient(buffers, [], [])
    for step, here, parts, space in chunks.chunks(slopes.steps, rows):
        pairs = zip(buffers, step.turned, strict=True)
        given = [b.t() if turned else b for b, turned in pairs if b is not None]
        results = step.run(*shared, *parts, *cotangents, *given, *space)
        n = len(chunks.sums)
        found.sums = added(found.sums, results[:n])
        gradients = results[n : n + len(slopes.rows)]
        if not found.rows:
            found.rows = [
                None if g is None else torch.empty_like(rows[i]) for i, g in zip(slopes.rows, gradients, strict=True)
            ]
        for whole, g in zip(found.rows, gradients, strict=True):
            if whole is not None:
                whole[here] = g
    return found


def _zeros(x: Tensor, turned: bool) -> Tensor:
    shape = x.shape[::-1] if turned else x.shape
    zeros = torch.zeros(shape, dtype=wide(x.dtype), device=x.device)
    return zeros.t() if turned else zeros


def _derivatives(chunks: Chunks, slopes: Slopes, sums: Sequence[Tensor], shared: Sequence[Tensor]) -> list[Tensor]:
    """Return the derivatives of the result by the sums that are differentiated."""
    leaves = [s.detach().requires_grad_() if i in slopes.sums else s for i, s in enumerate(sums)]
    with torch.enable_grad():
        result = chunks.after(*leaves, *(x.detach() for x in shared))[0]
        live = [leaves[i] for i in slopes.sums]
        found = torch.autograd.grad(result, live, allow_unused=True) if result.requires_grad else [None] * len(live)
    return [torch.zeros_like(s) if g is None else g for s, g in zip(live, found, strict=True)]


def _size_of(scales: Sequence[Tensor]) -> Tensor:
    """Return the largest of some numbers if it is one to divide by: numbers of 16 bits must not vanish."""
    largest = torch.stack([s.abs().amax() for s in scales]).amax()
    return torch.where(largest.isfinite() & (largest > 0), largest, torch.ones_like(largest))


def gradients_of(
    chunks: Chunks, slopes: Slopes, found: Gradient, tensors: Sequence[Tensor], g: Tensor
) -> list[Tensor | None]:
    """Return the gradients of the wanted inputs; `found` is used up."""
    g = g.reshape(())
    factor = g.to(wide(g.dtype))
    factor = factor if found.scale is None else factor * found.scale
    by_input: dict[int, Tensor | None] = {}
    inputs = chunks.split.inputs
    for i, rows in zip(slopes.rows, found.rows, strict=True):
        by_input[inputs[i]] = None if rows is None else _scaled(rows, factor, rows.dtype)
    leaves = [x.detach().requires_grad_(i in slopes.wanted and i not in inputs) for i, x in enumerate(tensors)]
    others = [i for i, x in enumerate(leaves) if x.requires_grad]
    if others:
        with torch.enable_grad():
            shared = chunks.before(*leaves)[: chunks.split.n_shared]
            pairs = [(shared[i], b) for i, b in zip(slopes.shared, found.shared, strict=True) if b is not None]
            roots = [root for root, _ in pairs]
            cotangents = [_scaled(b, factor, root.dtype) for root, b in pairs]
            if slopes.direct:
                result = chunks.after(*found.sums, *shared)[0]
                roots, cotangents = [*roots, result], [*cotangents, g.to(result.dtype).reshape(result.shape)]
            given = torch.autograd.grad(roots, [leaves[i] for i in others], cotangents, allow_unused=True)
        by_input |= {i: _laid_out(g, tensors[i]) for i, g in zip(others, given, strict=True)}
    return [by_input[i] for i in slopes.wanted]


def _laid_out(g: Tensor | None, x: Tensor) -> Tensor | None:
    return g.contiguous() if g is not None and x.is_contiguous() else g


def _scaled(x: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """Multiply in place, and return it in a dtype; 16 bits are multiplied in 32."""
    return x.to(wide(x.dtype)).mul_(factor).to(dtype)


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
        ctx.layouts = list(map(layout_of, tensors))
        ctx.save_for_backward(*tensors)
        return value

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
        if g is None:
            return (None,) * len(ctx.needs_input_grad)
        chunks, slopes, tensors = ctx.chunks, ctx.slopes, ctx.saved_tensors
        world = dispatch.world()
        if not world.is_compiling:
            tensors = as_saved(chunks.name, tensors, ctx.layouts)
        recorded = torch.is_grad_enabled() or (not world.is_compiling and _torch.in_functorch())
        gradients: Sequence[Tensor | None]
        if recorded or world is not World.EAGER or are_observed([g]):
            gradients = vjp_by_autograd(chunks.native, slopes.wanted, [0], len(tensors))(*tensors, g)
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
