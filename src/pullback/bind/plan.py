"""What is done for one kind of call: a forward and a backward of kernels, or the formula as it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.bind.call import Call
from pullback.errors import FormulaError
from pullback.graph.facts import Facts, Flat, facts_of
from pullback.graph.joint import Joint, cotangent_stride, joint_of

TENSOR = object()
"""Stands for a tensor in the template of a result."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How to carry out one kind of call.

    Attributes:
        joint: the graphs; `None` where the formula runs as it stands.
        why_inline: the reason, where there are no graphs.
        native: the derivative's formula on the tensors of a call, for orders beyond the first.
        template: the leaves of the result, `TENSOR` in place of each tensor.
        spec: their structure.
        layouts: size and stride of each connected output's cotangent.
        forward, backward: the graphs as functions.
    """

    joint: Joint | None
    why_inline: str = ""
    native: Flat | None = None
    template: tuple[Any, ...] = ()
    spec: Any = None
    layouts: tuple[tuple[int, ...], ...] = ()
    forward: Callable[..., Any] | None = None
    backward: Callable[..., Any] | None = None


def make_plan(call: Call, name: str, value: Callable[..., Any], derivative: Callable[..., Any], grad: bool) -> Plan:
    """Trace a call and decide how calls like it are carried out.

    Raises:
        FormulaError: if the formula does what has no derivative, or returns no tensor.
    """
    structure: list[Any] = []
    flat_value = call.flat(value, structure)
    flat = flat_value if derivative is value else call.flat(derivative)
    facts = facts_of(flat_value, call.tensors, name)
    outputs = facts.outputs
    if facts.outputs and not any(isinstance(out, Tensor) for out in facts.outputs):
        raise FormulaError(f"{name} returns {type(facts.outputs[0]).__name__}: a formula returns tensors.")
    if derivative is not value and not facts.obstacle:
        facts = facts_of(flat, call.tensors, name)
        outputs = facts.outputs if not facts.obstacle else outputs
    obstacle = facts.obstacle or call.obstacle
    if obstacle:
        return Plan(None, obstacle)
    return _with_graphs(call, flat_value, flat, Facts(outputs), structure[0], grad)


def _with_graphs(call: Call, value: Flat, derivative: Flat, facts: Facts, spec: Any, grad: bool) -> Plan:
    wanted = [
        i
        for i, t in enumerate(call.tensors)
        if grad and t.requires_grad and (t.dtype.is_floating_point or t.dtype.is_complex)
    ]
    try:
        joint = joint_of(value, derivative, call.tensors, facts.outputs, wanted)
    except Exception as error:
        return Plan(None, f"its derivative cannot be traced ({type(error).__name__}: {error})".splitlines()[0])
    results = [out for out in facts.outputs if isinstance(out, Tensor)]
    return Plan(
        joint,
        native=derivative,
        template=tuple(TENSOR if isinstance(out, Tensor) else out for out in facts.outputs),
        spec=spec,
        layouts=tuple(cotangent_stride(results[i]) for i in joint.connected),
        forward=joint.forward.forward,
        backward=joint.backward.forward,
    )


def as_planned(g: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Return a cotangent in the layout for which the backward was made."""
    if g.is_complex():
        g = g.resolve_conj().resolve_neg()
    elif g.is_neg():
        g = g.resolve_neg()
    if g.stride() == stride or not g.numel():
        return g
    return torch.empty_strided(g.shape, stride, dtype=g.dtype, device=g.device).copy_(g)


def rebuilt(plan: Plan, tensors: Any) -> Any:
    """Put the tensors of a result back into its structure."""
    waiting = iter(tensors)
    return _torch.tree_unflatten([next(waiting) if leaf is TENSOR else leaf for leaf in plan.template], plan.spec)
