"""The autograd Function that runs the kernels of a plan, in plain eager mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback import _torch, dispatch
from pullback.dispatch import World
from pullback.errors import DerivativeError
from pullback.graph.bits import holds_bits
from pullback.nesting import replaced_in_reverse
from pullback.nesting.table import is_wrong
from pullback.plan import KernelPlan, in_layout, vjp_by_autograd


def run(plan: KernelPlan, tensors: Sequence[Tensor]) -> Any:
    """Carry out one call by kernels."""
    return plan.result.filled(_apply(plan, *tensors))


class _Kernels(torch.autograd.Function):
    """The kernels of a plan. A backward that is recorded is itself such a call, or PyTorch's ops."""

    @staticmethod
    def forward(ctx: Any, plan: KernelPlan, *tensors: Tensor) -> tuple[Tensor, ...]:
        if plan.joint.untracked:
            with _torch.without_view_tracking():
                results = plan.forward(*tensors)
        else:
            results = plan.forward(*tensors)
        outputs, computed = results[: plan.n_outputs], results[plan.n_outputs :]
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        ctx.layouts = list(map(layout_of, (*tensors, *computed)))
        ctx.save_for_backward(*tensors, *computed)
        if plan.dead:
            ctx.mark_non_differentiable(*(outputs[i] for i in plan.dead))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, *gradients_of(ctx.plan, ctx.saved_tensors, ctx.layouts, cotangents))


_apply = _torch.eager_apply(_Kernels)


def packed_masks(node: Any) -> list[Tensor]:
    """Return the bit-packed comparisons that the node of a call keeps for its backward."""
    plan = getattr(node, "plan", None)
    if not isinstance(plan, KernelPlan):
        return []
    operands = plan.joint.backward.graph.find_nodes(op="placeholder")
    return [node.saved_tensors[i] for operand, i in zip(operands, plan.operands, strict=False) if holds_bits(operand)]


def gradients_of(
    plan: KernelPlan, saved: Sequence[Tensor], layouts: list[Layout | None], cotangents: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Return the gradient of each input, in a backward pass.

    Args:
        plan: plan of the call.
        saved: the inputs, then the residuals that the forward computed.
        layouts: their layouts in the forward.
        cotangents: cotangents of the outputs; `None` for an output that the loss does not use.
    """
    world = dispatch.world()
    compiling = world.is_compiling
    given: dict[int, Tensor] = {}
    for i in plan.joint.connected:
        g = cotangents[i]
        if g is not None:
            given[i] = g if compiling or type(g) in dispatch.PLAIN_TENSORS else _without_subclass(g)
    if not given:
        return [None] * plan.n_inputs
    if len(given) < len(plan.joint.connected):
        assert plan.restricted is not None
        plan = plan.restricted.to(tuple(given))
    if not compiling:
        saved = as_saved(plan.name, saved, layouts)
    if torch.is_grad_enabled() or (not compiling and _torch.in_functorch()):
        gradients = _recorded(plan, saved[: plan.n_inputs], list(given.values()))
    else:
        observed = world is not World.EAGER or are_observed((*saved, *given.values()))
        gs = [in_layout(given[i], stride, own and not observed) for i, stride, own in plan.layouts]
        backward = plan.in_ops if observed else _in_place(plan, saved) or plan.backward
        gradients = backward(*[saved[i] for i in plan.operands], *gs)
    if len(plan.joint.wanted) == plan.n_inputs:
        return list(gradients)
    by_input: list[Tensor | None] = [None] * plan.n_inputs
    for i, gradient in zip(plan.joint.wanted, gradients, strict=True):
        by_input[i] = gradient
    return by_input


def are_observed(tensors: Sequence[Tensor]) -> bool:
    """Whether a kernel would be wrong for some tensors: a subclass, or a batch of cotangents (`is_grads_batched`)."""
    return not dispatch.PLAIN_TENSORS.issuperset(map(type, tensors)) or any(map(_torch.is_batched_cotangent, tensors))


def _without_subclass(g: Tensor) -> Tensor:
    """Return a cotangent as a plain tensor, if its class overrides no op: PyTorch's own kernels would do the same."""
    return g.as_subclass(Tensor) if type(g).__torch_dispatch__ is Tensor.__torch_dispatch__ else g


def _in_place(plan: KernelPlan, saved: Sequence[Tensor]) -> Callable[..., Any] | None:
    """Return the backward that overwrites its residuals, if nothing else will read them."""
    if plan.in_place is None or _torch.retains_graph():
        return None
    return plan.in_place if _torch.owned_by_node_alone(saved[plan.n_inputs :]) else None


def _recorded(plan: KernelPlan, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Return the vjp where autograd records it, or a transform does, which differentiates PyTorch's ops."""
    if plan.next_order is not None and dispatch.world() is World.EAGER and not are_observed(cotangents):
        gradients = plan.next_order(plan.joint.connected)([*inputs, *cotangents])
        if gradients is not None:
            return gradients
    joint = plan.joint
    is_plain = dispatch.world() is World.EAGER and torch.is_grad_enabled() and not are_observed(cotangents)
    gradients = _vjp(plan, 2 if is_plain else 0)(*inputs, *cotangents)
    missing = [i for i, g, known in zip(joint.wanted, gradients, joint.unused, strict=True) if g is None and not known]
    if missing:
        raise DerivativeError(f"a transform of the backward lost the gradient of input tensor {missing[0]}.")
    if is_plain and any(is_wrong(row, 3) for row in plan.rows):
        return _of_third_order(plan, gradients, [*inputs, *cotangents])
    return gradients


def _vjp(plan: KernelPlan, order: int) -> Callable[..., Sequence[Tensor | None]]:
    """Return the vjp of a plan in PyTorch's ops, whose reverse mode is right up to an order of the formula's."""
    composite = replaced_in_reverse(plan.composite, plan.rows, order) if order else plan.composite
    return vjp_by_autograd(composite, plan.joint.wanted, plan.joint.connected, plan.n_inputs)


def _of_third_order(
    plan: KernelPlan, gradients: Sequence[Tensor | None], given: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """Return recorded gradients, as PyTorch's rules give them, whose second derivatives are by formulas.

    PyTorch's rule of second order may be right, and its derivative wrong: that of `layer_norm` takes the mean for a
    constant.
    """
    places = [i for i, g in enumerate(gradients) if g is not None and g.requires_grad]
    vjp = _vjp(plan, 3)

    def selected(*tensors: Tensor) -> list[Tensor]:
        found = vjp(*tensors)
        return [g for i in places if (g := found[i]) is not None]

    found = list(gradients)
    recorded = _as_recorded(selected, len(places), *(gradients[i] for i in places), *given)
    for i, g in zip(places, recorded, strict=True):
        found[i] = g
    return found


class _Gradient(torch.autograd.Function):
    """The identity of gradients; its backward is PyTorch's own, or by formulas if it is recorded."""

    @staticmethod
    def forward(ctx: Any, vjp: Callable[..., list[Tensor]], count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.vjp, ctx.count = vjp, count
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors[count:])
        return tuple(g.view_as(g) for g in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        given = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return (None, None, *cotangents, *[None] * len(given))
        known = tuple(i for i, g in enumerate(cotangents) if g is not None)
        wanted = [i for i, x in enumerate(given) if x.requires_grad]
        found = vjp_by_autograd(ctx.vjp, wanted, known, len(given))(*given, *(cotangents[i] for i in known))
        by_input: list[Tensor | None] = [None] * len(given)
        for i, g in zip(wanted, found, strict=True):
            by_input[i] = g
        return (None, None, *[None] * ctx.count, *by_input)


_as_recorded: Callable[..., tuple[Tensor, ...]] = _torch.eager_apply(_Gradient)


# `x.data = other`, a hook for saved tensors and `untyped_storage().resize_()` change a saved tensor behind autograd's
# back: its version counter does not move. A kernel takes pointers, and would read beyond the new memory.

Layout = tuple[Any, ...]
"""Shape, dtype, device, strides, bytes of the storage, and whether the tensor is a lazy negative."""


def layout_of(x: Tensor) -> Layout | None:
    """Return the properties of a tensor that kernels rely on; `None` if it has no strides or no storage."""
    try:
        return x.shape, x.dtype, x.device, x.stride(), x.untyped_storage().nbytes(), x.is_neg()
    except RuntimeError:
        return None


def as_saved(name: str, tensors: Sequence[Tensor], layouts: list[Layout | None]) -> Sequence[Tensor]:
    """Return saved tensors as kernels can read them: converted where only their dtype or layout has changed.

    Args:
        name: name of the op, for the error.
        tensors: the tensors in the backward.
        layouts: their layouts in the forward.

    Raises:
        DerivativeError: if one has another shape or device, or its storage is too small.
    """
    if list(map(layout_of, tensors)) == layouts:
        return tensors
    return [
        x if layout is None or layout_of(x) == layout else _converted(name, x, layout)
        for x, layout in zip(tensors, layouts, strict=True)
    ]


def _converted(name: str, x: Tensor, layout: Layout) -> Tensor:
    shape, dtype, device, *_ = layout
    both_float = x.is_floating_point() and dtype.is_floating_point
    is_compatible = x.dtype == dtype or both_float or (x.is_complex() and dtype.is_complex)
    if x.shape != shape or x.device != device or not is_compatible:
        raise DerivativeError(
            f"{name} saved a tensor of shape {tuple(shape)}, {dtype} on {device} for its backward, and was given shape "
            f"{tuple(x.shape)}, {x.dtype} on {x.device} instead: do not set its `.data` between forward and backward, "
            "and have hooks for saved tensors return what they were given."
        )
    if type(x) in dispatch.PLAIN_TENSORS:  # else PyTorch's ops read it, as they do in a transform
        x = in_layout(x, (), is_any=True)
        x = x.contiguous() if x.dim() == 1 else x  # it may hold packed bits, which kernels read at stride 1
        if is_short(x):
            raise DerivativeError(
                f"{name} saved a tensor of shape {tuple(shape)} for its backward whose storage has been resized to "
                f"{x.untyped_storage().nbytes()} bytes: resize it back before the backward."
            )
    return x.to(dtype)


def is_short(x: Tensor) -> bool:
    """Whether a tensor has elements beyond the end of its storage."""
    try:
        size = x.untyped_storage().nbytes()
    except RuntimeError:  # of a transform: it has none
        return False
    last = x.storage_offset() + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return bool(x.numel()) and (last + 1) * x.element_size() > size
