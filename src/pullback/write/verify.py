"""Comparison of a written text with its target, before it is returned."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.dtypes import has_derivative
from pullback.errors import FormulaError
from pullback.write.spec import FunctionSpec

_TOLERANCE = 2000.0
"""Accepted difference of two ways to compute a tensor, in machine epsilons of its largest element."""
_COTANGENT_SCALES = (1.0, 1e4)
"""Scales of the cotangents for which jvp and vjp are compared: a rule that clips its cotangent differs at one."""


def require_equivalent(spec: FunctionSpec, source: str, tensors: Sequence[Tensor]) -> None:
    """Compare value, gradient and second derivative of a text with those of the op, and its jvp with its vjp.

    The gradients of all inputs, and of each alone: a text may compute what they share for the first one only.

    Raises:
        FormulaError: if they differ.
    """
    function = _load(source, spec.class_name)

    def apply(*given: Tensor) -> list[Tensor]:
        result = function.apply(*given)
        return list(result) if isinstance(result, tuple) else [result]

    expected = _require_same(spec, apply, tensors, spec.active_inputs)
    for i in spec.active_inputs if len(spec.active_inputs) > 1 else ():
        _require_same(spec, apply, tensors, [i])
    finite = all(bool(g.isfinite().all()) for g in expected.get("gradient", ()))
    if spec.active_outputs and "def jvp(" in source and finite:
        _require_adjoint(spec, function, tensors)


def _require_same(
    spec: FunctionSpec, apply: Callable[..., list[Tensor]], tensors: Sequence[Tensor], active: Sequence[int]
) -> dict[str, list[Tensor]]:
    """Compare the derivatives by the active inputs with those of the op, and return these."""
    expected = _derivatives(spec.reference, tensors, active)
    try:
        found = _derivatives(apply, tensors, active)
    except UnboundLocalError as error:
        raise FormulaError(f"{spec.name} cannot be written: its backward would raise: {error}.") from None
    for part, reference in expected.items():
        if part not in found:
            raise FormulaError(f"{spec.name} cannot be written: its {part} would raise an error.")
        if not all(_is_close(a, b) for a, b in zip(found[part], reference, strict=True)):
            raise FormulaError(f"{spec.name} cannot be written: its {part} would differ from the op's.")
    return expected


def _load(source: str, class_name: str) -> Any:
    """The class of a text."""
    scope: dict[str, Any] = {"__name__": "written"}
    name = f"<written {class_name}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), scope)
    return scope[class_name]


def _require_adjoint(spec: FunctionSpec, function: Any, tensors: Sequence[Tensor]) -> None:
    """Compare jvp and vjp by ⟨g, J t⟩ = ⟨Jᵀ g, t⟩, for cotangents of several scales.

    A rule that is not linear in the cotangent has no tangent, even though its transposed graph computes one.
    """
    primals = tuple(tensors[i].detach() for i in spec.active_inputs)

    def active(*moved: Tensor) -> tuple[Tensor, ...]:
        given = [x.detach() for x in tensors]
        for i, x in zip(spec.active_inputs, moved, strict=True):
            given[i] = x
        result = function.apply(*given)
        outs = result if isinstance(result, tuple) else (result,)
        return tuple(outs[i] for i in spec.active_outputs)

    tangents = tuple(_direction(x, i) for i, x in enumerate(primals))
    value_and_jvp: Any = torch.func.jvp(active, primals, tangents)
    outs, jvp = value_and_jvp
    for scale in _COTANGENT_SCALES:
        gs = tuple(scale * _direction(out, 50 + i) for i, out in enumerate(outs))
        vjp = torch.func.vjp(active, *primals)[1](gs)
        forward = [g.conj() * t for g, t in zip(gs, jvp, strict=True)]
        backward = [g.conj() * t for g, t in zip(vjp, tangents, strict=True)]
        size = sum(float(x.abs().sum()) for x in (*forward, *backward))
        bound = _TOLERANCE * torch.finfo(gs[0].dtype).eps * max(size, 1e-2)
        if not abs(sum(float(x.sum().real) for x in forward) - sum(float(x.sum().real) for x in backward)) <= bound:
            raise FormulaError(
                f"{spec.name} cannot be written: its tangent would not be the transpose of its gradient. Declare a "
                "rule that is not linear in the cotangent with linear=False."
            )


def has_vmap(spec: FunctionSpec, source: str, tensors: Sequence[Tensor]) -> bool:
    """Whether a text can be batched: `vmap` has no ops with data-dependent sizes."""
    apply = _load(source, spec.class_name).apply
    try:
        torch.func.vmap(apply)(*(torch.stack([x.detach(), x.detach()]) for x in tensors))
    except RuntimeError:
        return False
    return True


def _derivatives(
    function: Callable[..., list[Tensor]], tensors: Sequence[Tensor], active: Sequence[int]
) -> dict[str, list[Tensor]]:
    """Value, gradient and second derivative of a call, as far as they exist, by these names."""
    given = [x.detach().clone().requires_grad_(i in active) for i, x in enumerate(tensors)]
    leaves = [given[i] for i in active]
    outs = [out for out in function(*given) if isinstance(out, Tensor)]
    found = {"value": [out.detach() for out in outs]}
    live = [out for out in outs if out.requires_grad and has_derivative(out)]
    if not live or not leaves:
        return found
    gs = [_direction(out, i).requires_grad_() for i, out in enumerate(live)]
    gradients = torch.autograd.grad(live, leaves, gs, create_graph=True, allow_unused=True)
    found["gradient"] = [_or_zero(g, x) for g, x in zip(gradients, leaves, strict=True)]
    differentiable = [g for g in gradients if g is not None and g.requires_grad]
    if not differentiable:
        return found
    directions = [_direction(g, 7 + i) for i, g in enumerate(differentiable)]
    try:
        second = torch.autograd.grad(differentiable, [*leaves, *gs], directions, allow_unused=True)
    except RuntimeError:  # there is no second derivative
        return found
    found["second derivative"] = [_or_zero(s, x) for s, x in zip(second, [*leaves, *gs], strict=True)]
    return found


def _direction(like: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, dtype=like.dtype, generator=generator)


def _or_zero(g: Tensor | None, x: Tensor) -> Tensor:
    return torch.zeros_like(x) if g is None else g.detach()


def _is_close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    scale = float(torch.nan_to_num(b.abs(), 0.0, 0.0, 0.0).amax()) if b.numel() else 0.0
    bound = _TOLERANCE * torch.finfo(b.dtype).eps * max(scale, 1e-2)
    return torch.allclose(a, b, rtol=0.0, atol=bound, equal_nan=True)
