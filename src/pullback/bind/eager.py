"""Plain eager mode: the kernels of a plan inside one Function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.bind.plan import Plan, as_planned, rebuilt
from pullback.errors import DerivativeError


def run(plan: Plan, tensors: list[Tensor]) -> Any:
    """Carry out one call."""
    assert plan.joint is not None
    assert plan.forward is not None
    if plan.joint.connected:
        results = _Kernels.apply(plan, *tensors)  # type: ignore[no-untyped-call]
    else:
        with torch.no_grad():
            results = plan.forward(*tensors)
    if len(plan.template) == 1 and plan.spec.is_leaf():
        return results[0]
    return rebuilt(plan, results)


class _Kernels(torch.autograd.Function):
    """The kernels of a plan. Orders beyond the first go through native ops."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, *tensors: Tensor) -> tuple[Tensor, ...]:
        joint = plan.joint
        assert joint is not None
        assert plan.forward is not None
        results = plan.forward(*tensors)
        outputs = tuple(results[: joint.n_outputs])
        ctx.plan = plan
        ctx.save_for_backward(*tensors, *results[joint.n_outputs :])
        if len(joint.connected) < joint.n_outputs:
            ctx.mark_non_differentiable(*(out for i, out in enumerate(outputs) if i not in joint.connected))
        return outputs

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        plan: Plan = ctx.plan
        joint = plan.joint
        assert joint is not None
        assert plan.backward is not None
        kept = ctx.saved_tensors
        n_inputs = len(ctx.needs_input_grad) - 1
        inputs, computed = kept[:n_inputs], list(kept[n_inputs:])
        gs = [cotangents[i] for i in joint.connected]
        if torch.is_grad_enabled() or (not torch.compiler.is_compiling() and _torch.in_functorch()):
            gradients = _through_native_ops(plan, inputs, gs)
        else:
            saved = [inputs[i] if i is not None else computed.pop(0) for i in joint.saved]
            gs = [as_planned(g, stride) for g, stride in zip(gs, plan.layouts, strict=True)]
            gradients = plan.backward(*saved, *gs)
        by_input = dict(zip(joint.wanted, gradients, strict=True))
        return None, *(by_input.get(i) for i in range(n_inputs))


def _through_native_ops(plan: Plan, inputs: tuple[Tensor, ...], cotangents: list[Tensor]) -> tuple[Tensor | None, ...]:
    """Return the vjp as native ops, which autograd and every transform differentiate further.

    Each input goes in as an alias of its own: where one input was made from another, the gradient of the
    first must not count the way through the second, which the engine adds.
    """
    joint = plan.joint
    assert joint is not None
    assert plan.native is not None
    record = torch.is_grad_enabled()
    with torch.enable_grad():
        aliases = [x.view_as(x) if x.requires_grad else x for x in inputs]
        outputs = [out for out in plan.native(*aliases) if isinstance(out, Tensor)]
        gradients = torch.autograd.grad(
            [outputs[i] for i in joint.connected],
            [aliases[i] for i in joint.wanted],
            cotangents,
            create_graph=record,
            allow_unused=True,
        )
    missing = [i for i, g, known in zip(joint.wanted, gradients, joint.unused, strict=True) if g is None and not known]
    if missing:
        raise DerivativeError(f"a transform of the backward lost the gradient of input tensor {missing[0]}.")
    return gradients
