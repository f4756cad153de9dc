"""Forward mode from a vjp rule, reverse mode from a jvp rule: transposition of a linear map."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pullback import _torch
from pullback.errors import DerivativeError
from pullback.ruled.linearity import objection
from pullback.ruled.rule import Record, Rule


def push_by_transposition(
    rule: Rule,
    record: Record,
    tangents: Sequence[Tensor | None],
    tensors: Sequence[Tensor],
    outputs: Sequence[Tensor],
    kept: Sequence[Tensor],
) -> list[Tensor | None]:
    """Return the tangents of the outputs: the vjp is `g -> J^T g`, its own vjp at a tangent `J t`.

    Raises:
        DerivativeError: if the vjp is not linear in the cotangent, or cannot be shown to be.
    """
    refusal = objection(rule, "vjp", record, tensors, outputs, kept, [True] * len(tensors))
    if refusal:
        raise DerivativeError(refusal)
    needs = [t is not None for t in tangents]
    moved = [i for i, t in enumerate(tangents) if t is not None]
    live = [i for i, yes in enumerate(record.differentiable) if yes]

    def transposed(*gs: Tensor) -> tuple[Tensor, ...]:
        cotangents: list[Tensor | None] = [None] * len(outputs)
        for i, g in zip(live, gs, strict=True):
            cotangents[i] = g
        gradients = rule.pull(record, cotangents, tensors, outputs, kept, needs)
        return tuple(or_zero(gradients[i], tensors[i]) for i in moved)

    pull = torch.func.vjp(transposed, *(torch.zeros_like(outputs[i]) for i in live))[1]
    pushed = pull(tuple(t for t in tangents if t is not None))
    result: list[Tensor | None] = [None] * len(outputs)
    for position, pushed_one in zip(live, pushed, strict=True):
        result[position] = pushed_one
    return result


def pull_by_transposition(
    rule: Rule,
    record: Record,
    cotangents: Sequence[Tensor | None],
    tensors: Sequence[Tensor],
    outputs: Sequence[Tensor],
    kept: Sequence[Tensor],
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """Return the gradients of the inputs: the jvp is `t -> J t`, its vjp at a cotangent `J^T g`.

    Raises:
        DerivativeError: if the jvp is not linear in the tangents, or cannot be shown to be.
    """
    refusal = record.refusal
    if refusal is None:
        refusal = objection(rule, "jvp", record, tensors, outputs, kept, needs)
    if refusal:
        raise DerivativeError(refusal)
    moved = [i for i, need in enumerate(needs) if need]
    live = [i for i, g in enumerate(cotangents) if g is not None]  # zeros times an infinite slope would be NaN

    def along(*ts: Tensor) -> tuple[Tensor, ...]:
        tangents: list[Tensor | None] = [None] * len(tensors)
        for i, t in zip(moved, ts, strict=True):
            tangents[i] = t
        pushed = rule.push(record, tangents, tensors, outputs, kept)
        if any(t is not None and not t.requires_grad for t in (pushed[i] for i in live)):
            raise DerivativeError(
                f"the jvp of {rule.name} computes outside of PyTorch (NumPy, a kernel), so no vjp follows from it: "
                f"give one with `@{rule.name}.vjp`. Where an output does not move, the jvp returns None for it."
            )
        return tuple(or_zero(pushed[i], outputs[i]) for i in live)

    zeros = [torch.zeros_like(tensors[i]) for i in moved]
    given = tuple(g for g in cotangents if g is not None)
    gradients: list[Tensor | None] = [None] * len(tensors)
    if not live:
        return gradients
    for i, gradient in zip(moved, _transposed(along, zeros, given), strict=True):
        gradients[i] = gradient
    return gradients


def _transposed(
    linear: Callable[..., tuple[Tensor, ...]], zeros: Sequence[Tensor], cotangents: tuple[Tensor, ...]
) -> Sequence[Tensor | None]:
    """Apply the transpose of a linear map, by plain autograd where possible: torch.func refuses saved-tensor hooks."""
    if _torch.in_functorch():
        gradients: Sequence[Tensor] = torch.func.vjp(linear, *zeros)[1](cotangents)
        return gradients
    record = torch.is_grad_enabled()
    with torch.enable_grad():
        roots = [zero.requires_grad_() for zero in zeros]
        pushed = linear(*roots)
        live = [(out, g) for out, g in zip(pushed, cotangents, strict=True) if out.requires_grad]
        if not live:
            return [None] * len(roots)
        outs, gs = zip(*live, strict=True)
        return torch.autograd.grad(outs, roots, gs, create_graph=record, allow_unused=True)


def or_zero(derivative: Tensor | None, like: Tensor) -> Tensor:
    """Return a derivative, `None` standing for zeros."""
    return torch.zeros_like(like) if derivative is None else derivative
