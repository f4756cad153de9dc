"""Forward mode from a vjp rule, reverse mode from a jvp rule: transposition of a linear map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from pullback import _torch
from pullback.bind.rule import Record, Rule
from pullback.errors import DerivativeError


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
    _require_linear(rule, record, tensors, outputs, kept)
    needs = [t is not None for t in tangents]
    moved = [i for i, t in enumerate(tangents) if t is not None]
    live = [i for i, yes in enumerate(record.differentiable) if yes]

    def transposed(*gs: Tensor) -> tuple[Tensor, ...]:
        cotangents: list[Tensor | None] = [None] * len(outputs)
        for i, g in zip(live, gs, strict=True):
            cotangents[i] = g
        gradients = rule.pull(record, cotangents, tensors, outputs, kept, needs)
        return tuple(_or_zero(gradients[i], tensors[i]) for i in moved)

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
    """Return the gradients of the inputs: the jvp is `t -> J t`, its vjp at a cotangent `J^T g`."""
    moved = [i for i, need in enumerate(needs) if need]
    live = [i for i, yes in enumerate(record.differentiable) if yes]

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
        return tuple(_or_zero(pushed[i], outputs[i]) for i in live)

    zeros = [torch.zeros_like(tensors[i]) for i in moved]
    given = tuple(_or_zero(cotangents[i], outputs[i]) for i in live)
    gradients: list[Tensor | None] = [None] * len(tensors)
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


def _or_zero(derivative: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if derivative is None else derivative


def _require_linear(
    rule: Rule, record: Record, tensors: Sequence[Tensor], outputs: Sequence[Tensor], kept: Sequence[Tensor]
) -> None:
    if rule.linear is True:
        return
    remedy = f"give the tangent with `@{rule.name}.jvp`"
    if rule.linear is False:
        raise DerivativeError(
            f"the vjp of {rule.name} is declared not linear in the cotangent: no tangent follows from it. For forward "
            f"mode, {remedy}."
        )
    every = (*tensors, *outputs, *kept)
    key = (tuple((t.shape, t.dtype) for t in every), repr(record.args.template))
    if key not in rule.proven:
        rule.proven[key] = _is_linear(rule, record, tensors, outputs, kept)
    if not rule.proven[key]:
        raise DerivativeError(
            f"the vjp of {rule.name} cannot be shown to be linear in the cotangent, and no tangent follows from one "
            f"that is not. For forward mode, {remedy}, or say `@{rule.name}.vjp(linear=True)` if you know it is."
        )


def _is_linear(
    rule: Rule, record: Record, tensors: Sequence[Tensor], outputs: Sequence[Tensor], kept: Sequence[Tensor]
) -> bool:
    """Whether the rule is linear for certain: its transpose, as a graph, reads no cotangent, and 0 goes to 0.

    A map whose derivative does not depend on where it is taken is affine. The derivative's graph shows it:
    the cotangent is not read, not even to decide (a clamp compares it). What is affine and 0 at 0 is linear.
    """
    shapes = [[(tuple(t.shape), t.dtype) for t in group] for group in (tensors, outputs, kept)]
    with ThreadPoolExecutor(1) as fresh:  # transforms and modes belong to a thread: the proof sees none
        return fresh.submit(_proof, rule, record, shapes).result()


def _proof(rule: Rule, record: Record, shapes: list[list[tuple[tuple[int, ...], torch.dtype]]]) -> bool:
    xs, outs, rs = ([torch.full(shape, 0.5).to(dtype) for shape, dtype in group] for group in shapes)
    live = [i for i, yes in enumerate(record.differentiable) if yes]
    gs = [outs[i] for i in live]

    def pulled(cotangents: Sequence[Tensor]) -> list[Tensor | None]:
        given: list[Tensor | None] = [None] * len(outs)
        for i, g in zip(live, cotangents, strict=True):
            given[i] = g
        return rule.pull(record, given, xs, outs, rs, [True] * len(xs))

    def transpose(*given: Tensor) -> list[Tensor | None]:
        roots = [g.detach().requires_grad_() for g in given[: len(gs)]]
        with torch.enable_grad():
            gradients = pulled(roots)
        pairs = [(g, t) for g, t in zip(gradients, given[len(gs) :], strict=True) if g is not None]
        return list(torch.autograd.grad([g for g, _ in pairs], roots, [t for _, t in pairs], allow_unused=True))

    try:
        graph = _torch.trace_ops(transpose, *gs, *xs).graph
        zeros = pulled([torch.zeros_like(g) for g in gs])
    except Exception:
        return False
    graph.eliminate_dead_code()
    cotangents = graph.find_nodes(op="placeholder")[: len(gs)]
    return not any(node.users for node in cotangents) and all(z is None or not bool(z.any()) for z in zeros)
