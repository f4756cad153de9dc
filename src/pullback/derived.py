"""Plain eager mode: the kernels of a plan inside one Function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.bind.again import gradient_of
from pullback.bind.kept import Kind, as_kept, kind_of
from pullback.errors import DerivativeError
from pullback.graph.bits import holds_bits
from pullback.plan import Kernels, in_layout


def run(kernels: Kernels, tensors: Sequence[Tensor]) -> Any:
    """Carry out one call."""
    return kernels.result.filled(_apply(kernels, *tensors))


class _Kernels(torch.autograd.Function):
    """The kernels of a plan. Orders beyond the first go through native ops."""

    @staticmethod
    def forward(ctx: Any, kernels: Kernels, *tensors: Tensor) -> tuple[Tensor, ...]:
        if kernels.joint.untracked:
            with _torch.views_untracked():
                results = kernels.forward(*tensors)
        else:
            results = kernels.forward(*tensors)
        outputs, computed = results[: kernels.n_outputs], results[kernels.n_outputs :]
        ctx.kernels = kernels
        ctx.set_materialize_grads(False)
        ctx.kinds = list(map(kind_of, (*tensors, *computed)))
        ctx.save_for_backward(*tensors, *computed)
        if kernels.dead:
            ctx.mark_non_differentiable(*(outputs[i] for i in kernels.dead))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, *gradients_of(ctx.kernels, ctx.saved_tensors, ctx.kinds, cotangents))


def bits_kept_by(node: Any) -> list[Tensor]:
    """Return the bits of truth values that the node of a call keeps for its backward."""
    kernels = getattr(node, "kernels", None)
    if not isinstance(kernels, Kernels):
        return []
    places = kernels.joint.backward.graph.find_nodes(op="placeholder")
    return [node.saved_tensors[i] for place, i in zip(places, kernels.operands, strict=False) if holds_bits(place)]


def gradients_of(
    kernels: Kernels, kept: Sequence[Tensor], kinds: list[Kind | None], cotangents: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Return the gradient of each input, in a backward pass.

    Args:
        kernels: of the call.
        kept: the inputs, then the computed residuals.
        kinds: shape, strides and dtype of the inputs in the forward.
        cotangents: of the outputs; `None` for an output that the loss does not use.
    """
    compiling = torch.compiler.is_compiling()
    given: dict[int, Tensor] = {}
    for i in kernels.joint.connected:
        g = cotangents[i]
        if g is not None:
            given[i] = g if compiling or type(g) in _PLAIN else _as_plain(g)
    if not given:
        return [None] * kernels.n_inputs
    if len(given) < len(kernels.joint.connected):
        assert kernels.parts is not None
        kernels = kernels.parts.of(tuple(given))
    if not compiling:
        kept = as_kept(kernels.name, kept, kinds)
    if torch.is_grad_enabled() or (not compiling and _torch.in_functorch()):
        gradients = _recorded(kernels, kept[: kernels.n_inputs], list(given.values()))
    else:
        watched = is_watched((*kept, *given.values()))
        gs = [in_layout(given[i], stride, own and not watched) for i, stride, own in kernels.layouts]
        backward = kernels.in_ops if watched else _spending(kernels, kept) or kernels.backward
        gradients = backward(*[kept[i] for i in kernels.operands], *gs)
    if len(kernels.joint.wanted) == kernels.n_inputs:
        return list(gradients)
    by_input: list[Tensor | None] = [None] * kernels.n_inputs
    for i, gradient in zip(kernels.joint.wanted, gradients, strict=True):
        by_input[i] = gradient
    return by_input


def _as_plain(g: Tensor) -> Tensor:
    """Return a cotangent without a class that PyTorch's own kernels do not see, and so would not return."""
    return g.as_subclass(Tensor) if type(g).__torch_dispatch__ is Tensor.__torch_dispatch__ else g


def _spending(kernels: Kernels, kept: Sequence[Tensor]) -> Callable[..., Any] | None:
    """Return the backward that overwrites its residuals in place, if nothing else will read them."""
    if kernels.spending is None or _torch.keeps_graph():
        return None
    return kernels.spending if _torch.held_by_their_node_alone(kept[kernels.n_inputs :]) else None


def is_watched(tensors: Sequence[Tensor]) -> bool:
    """Whether only ATen ops will do: for compiled autograd, a mode, a batch of cotangents, a subclass."""
    if torch.compiler.is_dynamo_compiling() or not _torch.is_plain_eager():
        return True
    return not _PLAIN.issuperset(map(type, tensors)) or any(map(_torch.is_grads_batch, tensors))


_PLAIN = frozenset({Tensor, torch.nn.Parameter})


_apply = _torch.plain_apply(_Kernels)


def _recorded(kernels: Kernels, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Return the vjp where autograd records it, or a transform does, which differentiates native ops."""
    if kernels.again is not None and not is_watched(cotangents):
        gradients = kernels.again(kernels.joint.connected)([*inputs, *cotangents])
        if gradients is not None:
            return gradients
    joint = kernels.joint
    gradients = gradient_of(kernels.native, joint.wanted, joint.connected, kernels.n_inputs)(*inputs, *cotangents)
    missing = [i for i, g, known in zip(joint.wanted, gradients, joint.unused, strict=True) if g is None and not known]
    if missing:
        raise DerivativeError(f"a transform of the backward lost the gradient of input tensor {missing[0]}.")
    return gradients
