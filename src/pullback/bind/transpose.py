"""Forward mode from a vjp rule, reverse mode from a jvp rule: transposition of a linear map."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback import _torch
from pullback.bind.rule import Record, Rule
from pullback.bind.watch import Draws
from pullback.errors import DerivativeError
from pullback.graph.reads import Reads, reads_of


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
        return tuple(or_zero(pushed[i], outputs[i]) for i in live)

    zeros = [torch.zeros_like(tensors[i]) for i in moved]
    given = tuple(or_zero(cotangents[i], outputs[i]) for i in live)
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


def or_zero(derivative: Tensor | None, like: Tensor) -> Tensor:
    """Return a derivative, `None` standing for zeros."""
    return torch.zeros_like(like) if derivative is None else derivative


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether a rule is linear for one kind of call, and what it read when that was found."""

    linear: bool
    reads: Reads


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
    proof = rule.proven.get(key)
    if proof is None or proof.reads.obstacle or not proof.reads.unchanged():
        proof = Proof(_is_linear(rule, record, tensors, outputs, kept), reads_of(rule.vjp))
        rule.proven[key] = proof
    if not proof.linear:
        raise DerivativeError(
            f"the vjp of {rule.name} cannot be shown to be linear in the cotangent, and no tangent follows from one "
            f"that is not. For forward mode, {remedy}, or say `@{rule.name}.vjp(linear=True)` if you know it is."
        )


def _is_linear(
    rule: Rule, record: Record, tensors: Sequence[Tensor], outputs: Sequence[Tensor], kept: Sequence[Tensor]
) -> bool:
    """Whether the rule is linear for certain: its transpose, as a graph, reads no cotangent, and it adds up.

    A map whose derivative does not depend on where it is taken is affine. The derivative's graph shows it:
    the cotangent is not read, not even to decide (a clamp compares it). What autograd does not see of a rule (a
    step, a detach, a random draw) shows in numbers: at cotangents small, usual and large, sums go to sums.
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
        draws = Draws()

        def watched(cotangents: Sequence[Tensor]) -> list[Tensor | None]:
            with draws:
                return pulled(cotangents)

        adds_up = all(_adds_up(watched, gs, scale) for scale in (1e-3, 1.0, 1e3))
    except Exception:
        return False
    graph.eliminate_dead_code()
    cotangents = graph.find_nodes(op="placeholder")[: len(gs)]
    return not any(node.users for node in cotangents) and adds_up and not draws.seen


def _adds_up(pulled: Callable[[Sequence[Tensor]], list[Tensor | None]], gs: Sequence[Tensor], scale: float) -> bool:
    """Whether g + 2h goes to the image of g plus twice that of h, and 3g to thrice that of g, up to rounding."""
    generator = torch.Generator().manual_seed(0)
    g, h = ([(scale * torch.randn(t.shape, generator=generator)).to(t.dtype) for t in gs] for _ in range(2))
    image, other = pulled(g), pulled(h)
    total = pulled([a + 2 * b for a, b in zip(g, h, strict=True)])
    thrice = pulled([3 * a for a in g])
    rounding = 64 * max((torch.finfo(t.dtype).eps for t in gs), default=0.0)
    for images in zip(image, other, total, thrice, strict=True):
        if any(t is None for t in images):
            if any(t is not None for t in images):
                return False
            continue
        a, b, both, three = (_wide(t) for t in images)
        size = rounding * float((a.abs() + b.abs()).sum())
        same = functools.partial(torch.allclose, rtol=rounding, atol=size)
        if not (same(both, a + 2 * b) and same(three, 3 * a)):
            return False
    return True


def _wide(t: Tensor | None) -> Tensor:
    assert t is not None
    return t.to(torch.complex128 if t.is_complex() else torch.float64)
