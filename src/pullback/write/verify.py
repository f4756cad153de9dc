"""Check of a written text against its target, before it is returned."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.dtypes import has_derivative
from pullback.errors import FormulaError
from pullback.write.spec import FunctionSpec

_ROUNDINGS = 2000.0
"""How many roundings, of the largest element, two ways to compute one thing may differ by in the result."""


_SCALES = (1.0, 1e4)
"""Of the cotangents that forward mode is compared by."""


def loaded(source: str, class_name: str) -> Any:
    """Return the class of a text."""
    scope: dict[str, Any] = {"__name__": "written"}
    name = f"<written {class_name}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), scope)
    return scope[class_name]


def require_equivalent(d: FunctionSpec, source: str, tensors: Sequence[Tensor]) -> None:
    """Compare value, gradient and second derivative of a text with those of the op, and its tangent with its gradient.

    Raises:
        FormulaError: if they differ.
    """
    written = loaded(source, d.class_name)

    def apply(*given: Tensor) -> list[Tensor]:
        result = written.apply(*given)
        return list(result) if isinstance(result, tuple) else [result]

    ours, theirs = _run(apply, tensors, d.wanted), _run(d.original, tensors, d.wanted)
    for part, expected in theirs.items():
        got = ours.get(part)
        if got is None:
            raise FormulaError(f"{d.name} cannot be written: its {part} would raise an error.")
        for a, b in zip(got, expected, strict=True):
            if not _close(a, b):
                raise FormulaError(f"{d.name} cannot be written: its {part} would differ from the op's.")
    if d.connected and "def jvp(" in source and all(bool(g.isfinite().all()) for g in theirs.get("gradient", ())):
        _require_adjoint(d, written, tensors)


def _require_adjoint(d: FunctionSpec, function: Any, tensors: Sequence[Tensor]) -> None:
    """Compare forward mode with the gradient, ⟨g, J t⟩ with ⟨Jᵀ g, t⟩, for cotangents small and large.

    A rule that is not linear in the cotangent has no tangent, even though the graph has one.
    """
    primals = tuple(tensors[i].detach() for i in d.wanted)

    def live(*moved: Tensor) -> tuple[Tensor, ...]:
        given = [x.detach() for x in tensors]
        for i, x in zip(d.wanted, moved, strict=True):
            given[i] = x
        result = function.apply(*given)
        outs = result if isinstance(result, tuple) else (result,)
        return tuple(outs[i] for i in d.connected)

    tangents = tuple(_direction(x, i) for i, x in enumerate(primals))
    moved: Any = torch.func.jvp(live, primals, tangents)
    outs, pushed = moved
    for scale in _SCALES:
        gs = tuple(scale * _direction(out, 50 + i) for i, out in enumerate(outs))
        pulled = torch.func.vjp(live, *primals)[1](gs)
        forward = [g.conj() * t for g, t in zip(gs, pushed, strict=True)]
        backward = [g.conj() * t for g, t in zip(pulled, tangents, strict=True)]
        size = sum(float(x.abs().sum()) for x in (*forward, *backward))
        bound = _ROUNDINGS * torch.finfo(gs[0].dtype).eps * max(size, 1e-2)
        if not abs(sum(float(x.sum().real) for x in forward) - sum(float(x.sum().real) for x in backward)) <= bound:
            raise FormulaError(
                f"{d.name} cannot be written: its tangent would not be the transpose of its gradient. A rule that "
                "is not linear in the cotangent says so with linear=False."
            )


def has_vmap(d: FunctionSpec, source: str, tensors: Sequence[Tensor]) -> bool:
    """Whether a text can be batched: `vmap` has no ops with data-dependent sizes."""
    apply = loaded(source, d.class_name).apply
    try:
        torch.func.vmap(apply)(*(torch.stack([x.detach(), x.detach()]) for x in tensors))
    except RuntimeError:
        return False
    return True


def _run(function: Callable[..., list[Tensor]], tensors: Sequence[Tensor], wanted: Sequence[int]) -> dict[str, Any]:
    """Return value, gradient and second derivative of a call, as far as they exist."""
    given = [x.detach().clone().requires_grad_(i in wanted) for i, x in enumerate(tensors)]
    leaves = [given[i] for i in wanted]
    found: dict[str, Any] = {}
    outs = [out for out in function(*given) if isinstance(out, Tensor)]
    found["value"] = [out.detach() for out in outs]
    live = [out for out in outs if out.requires_grad and has_derivative(out)]
    if not live or not leaves:
        return found
    gs = [_direction(out, i).requires_grad_() for i, out in enumerate(live)]
    gradients = torch.autograd.grad(live, leaves, gs, create_graph=True, allow_unused=True)
    found["gradient"] = [_or_zero(g, x) for g, x in zip(gradients, leaves, strict=True)]
    again = [g for g in gradients if g is not None and g.requires_grad]
    try:
        directions = [_direction(g, 7 + i) for i, g in enumerate(again)]
        second = torch.autograd.grad(again, [*leaves, *gs], directions, allow_unused=True) if again else []
    except RuntimeError:  # there is no second derivative
        return found
    if again:
        found["second derivative"] = [_or_zero(s, x) for s, x in zip(second, [*leaves, *gs], strict=True)]
    return found


def _direction(like: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, dtype=like.dtype, generator=generator)


def _or_zero(g: Tensor | None, x: Tensor) -> Tensor:
    return torch.zeros_like(x) if g is None else g.detach()


def _close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    scale = float(torch.nan_to_num(b.abs(), 0.0, 0.0, 0.0).amax()) if b.numel() else 0.0
    bound = _ROUNDINGS * torch.finfo(b.dtype).eps * max(scale, 1e-2)
    return torch.allclose(a, b, rtol=0.0, atol=bound, equal_nan=True)
