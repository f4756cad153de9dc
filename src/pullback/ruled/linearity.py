"""Transposition of a rule: forward mode from a vjp, reverse mode from a jvp; and the proof that the rule is linear.

A vjp is g ↦ Jᵀ g and a jvp t ↦ J t. Each is the transpose of the other, and the transpose of a linear map A is its own
vjp, at any point: t ↦ Aᵀ t. So one rule gives both modes, if it is linear. That is proven once for each kind of call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback._torch import trace_ops
from pullback.call import Tree
from pullback.dtypes import has_derivative
from pullback.errors import DerivativeError, report_internal_error
from pullback.graph.captures import Captures, captures_of
from pullback.graph.trace import functionalise
from pullback.modes import RandomMode
from pullback.ops.record import Continuity
from pullback.ops.registry import BY_ATEN
from pullback.ruled.rule import CallRecord, DerivativeRule

_WORDS = {
    "vjp": ("cotangent", "tangent", "forward mode", "jvp"),
    "jvp": ("tangents", "gradient", "reverse mode", "vjp"),
}
"""For each kind of rule: its linear argument, the transposed argument, the mode that this gives, the rule for it."""

Map = Callable[[Sequence[Tensor]], list[Tensor | None]]


@dataclass(frozen=True, slots=True)
class LinearityProof:
    """Why a rule may not be transposed for one kind of call, and the captures of the rule at that time.

    Attributes:
        objection: empty if it may.
        may_be_declared: whether it may with `linear=True`.
        captures: captures of the rule.
    """

    objection: str
    may_be_declared: bool
    captures: Captures


def objection(
    rule: DerivativeRule,
    what: str,
    record: CallRecord,
    tensors: Sequence[Tensor],
    outputs: Sequence[Tensor],
    saved: Sequence[Tensor],
    needs: Sequence[bool],
) -> str:
    """Return why the "vjp" or "jvp" of an op may not be transposed; empty where it is linear for certain.

    `needs` says which inputs get a gradient: these move.
    """
    declared = rule.linear if what == "vjp" else rule.jvp_linear
    where, follows, mode, other = _WORDS[what]
    remedy = f"For {mode}, give the {follows} with `@{rule.name}.{other}`"
    if declared is False:
        return (
            f"the {what} of {rule.name} is declared not linear in the {where}: no {follows} follows from it. {remedy}."
        )
    every = (*tensors, *outputs, *saved)
    unproven = (
        f"the {what} of {rule.name} cannot be shown to be linear in the {where} (it {{}}), and no {follows} follows "
        f"from one that is not. {remedy}{{}}."
    )
    or_declare = f", or say `@{rule.name}.{what}(linear=True)` if you know it is"
    if any(t.is_nested for t in every):
        return "" if declared else unproven.format("is given a nested tensor", or_declare)
    arguments = record.args.identity()
    key = (what, declared, *needs, tuple((t.shape, t.dtype, t.device) for t in every), arguments)
    proof = rule.proven.get(key)
    if proof is None or not (declared or (arguments is not None and _holds(proof.captures))):
        function = rule.vjp if what == "vjp" else rule.jvp
        xs, outs, rs = ([_factory_like(t) for t in group] for group in (tensors, outputs, saved))
        map_at = functools.partial(_vjp_at if what == "vjp" else _jvp_at, rule, record, xs, outs, rs, needs)
        prove = functools.partial(_objection, map_at, declared is True)
        with _torch.new_thread() as fresh:  # transforms and modes belong to a thread: the proof sees none
            proof = LinearityProof(*fresh.submit(prove).result(), captures_of(function))
        rule.proven[key] = proof
    if not proof.objection:
        return ""
    why = proof.objection
    if why == _DETACHED and not all(has_derivative(t) or t.dtype == torch.bool for t in every):
        why += ", or writes by whole numbers, which were tried all equal"
    if declared:
        return (
            f"the {what} of {rule.name} is declared linear in the {where}, but it {why}: no {follows} "
            f"follows from it. {remedy}, or leave `no_grad` and `detach` out of the rule."
        )
    return unproven.format(why, or_declare if proof.may_be_declared else "")


def _holds(captures: Captures) -> bool:
    return not captures.obstacle and captures.unchanged()


def require_linear_jvp(rule: DerivativeRule, args: list[Any]) -> None:
    """Raise a `DerivativeError` if the jvp of an op may not be transposed.

    `args` are those of a call, with (shape, dtype, device) in place of each tensor.
    """
    tree, tensors = Tree.of(tuple(torch.full(a[0], 0.5).to(a[2], a[1]) if type(a) is tuple else a for a in args))
    record = CallRecord(tree, [(t.shape, t.dtype) for t in tensors])
    with torch.no_grad():
        outputs, saved = rule.evaluate(record, tensors)
    refusal = objection(rule, "jvp", record, tensors, outputs, saved, [has_derivative(t) for t in tensors])
    if refusal:
        raise DerivativeError(refusal)


def _factory_like(t: Tensor) -> Callable[[float], Tensor]:
    """Return a factory of tensors with the shape, dtype and device of `t`; it must run outside every transform."""
    shape, dtype, device = tuple(t.shape), t.dtype, "cpu" if t.is_meta else t.device
    return lambda number: torch.full(shape, number).to(device, dtype)


Factories = Sequence[Callable[[float], Tensor]]
MapWithEnds = tuple[Map, list[Tensor], list[Tensor]]
"""A map, its domain and its codomain."""


def _vjp_at(
    rule: DerivativeRule,
    record: CallRecord,
    tensors: Factories,
    outputs: Factories,
    saved: Factories,
    needs: Sequence[bool],
    number: float,
) -> MapWithEnds:
    """Return the vjp where all inputs are one number."""
    live = [i for i, yes in enumerate(record.differentiable) if yes]
    xs, outs, rs = ([make(number) for make in group] for group in (tensors, outputs, saved))

    def pulled(gs: Sequence[Tensor]) -> list[Tensor | None]:
        return rule.pull(record, _scattered(gs, live, len(outs)), xs, outs, rs, needs)

    return pulled, [outs[i] for i in live], xs


def _jvp_at(
    rule: DerivativeRule,
    record: CallRecord,
    tensors: Factories,
    outputs: Factories,
    saved: Factories,
    needs: Sequence[bool],
    number: float,
) -> MapWithEnds:
    """Return the jvp where all inputs are one number."""
    moved = [i for i, need in enumerate(needs) if need]
    live = [i for i, yes in enumerate(record.differentiable) if yes]
    xs, outs, rs = ([make(number) for make in group] for group in (tensors, outputs, saved))

    def pushed(ts: Sequence[Tensor]) -> list[Tensor | None]:
        tangents = rule.push(record, _scattered(ts, moved, len(xs)), xs, outs, rs)
        return [tangents[i] for i in live]

    return pushed, [xs[i] for i in moved], [outs[i] for i in live]


def _scattered(given: Sequence[Tensor], positions: Sequence[int], n: int) -> list[Tensor | None]:
    """Put tensors in their positions among n, `None` elsewhere."""
    spread: list[Tensor | None] = [None] * n
    for i, t in zip(positions, given, strict=True):
        spread[i] = t
    return spread


_UNKNOWN_SIZE = "GuardOnDataDependentSymNode"
"""Class name of the error of data-dependent tracing. Importing the class takes a second."""
_DETACHED = "has a part that autograd does not see"


def _objection(at: Callable[[float], MapWithEnds], is_declared: bool) -> tuple[str, bool]:
    """Return why a map may not be transposed, and whether it may if the user declares it linear."""
    why = "" if is_declared else _not_linear(at)
    if not (is_declared or why):
        return "", True
    is_tracked = all(_is_transposed_at(at, number) for number in (-2.0, 0.0, 0.5, 2.0))
    return why or ("" if is_tracked else _DETACHED), is_tracked


def _not_linear(at: Callable[[float], MapWithEnds]) -> str:
    """Return why a map is not known to be linear, or its transpose by autograd to be right; empty if both are.

    A map is affine if its derivative is the same at every point. The derivative's graph shows this: it does not read
    the argument, not even in a comparison (a clamp does). Parts of a rule that autograd does not see (a step function,
    a detach, a random draw) show in the graph of the map, or numerically: at small, usual and large arguments
    A (g + h) = A g + A h, and ⟨t, A g⟩ = ⟨Aᵀ t, g⟩.

    An affine map A g = L g + c is linear if c = 0, and additivity shows c: A (g + 2h) − A g − 2 A h = −2 c. Where
    autograd sees a map B in place of A, its transpose is Bᵀ, and ⟨t, A g⟩ − ⟨Bᵀ t, g⟩ = ⟨t, (A − B) g⟩. For linear
    B ≠ A that vanishes on a set of measure zero only: one draw of normal g and t finds it, up to rounding.

    Args:
        at: returns the map where all inputs are one number, its domain and its codomain.
    """
    image_of, domain, codomain = at(0.5)
    random = RandomMode()

    def observed(arguments: Sequence[Tensor]) -> list[Tensor | None]:
        with random:
            return image_of(arguments)

    def transpose(*given: Tensor) -> list[Tensor | None]:
        return _transpose(image_of, given[: len(domain)], given[len(domain) :])

    try:
        with torch.autograd.set_detect_anomaly(False):  # it asks for values
            graph = trace_ops(transpose, *domain, *codomain).graph
            of_map = trace_ops(lambda *gs: image_of(gs), *domain).graph
        is_additive = all(_is_additive(observed, domain, scale) for scale in (1e-3, 1.0, 1e3))
        is_transposed = _is_transposed(image_of, domain, codomain)
    except DerivativeError:
        raise
    except Exception as error:  # any error of a rule on tensors without data, or on such numbers
        report_internal_error(error)
        if isinstance(error, _torch.DATA_DEPENDENT) or type(error).__name__ == _UNKNOWN_SIZE:
            return "decides by values, which no graph shows"
        why = f"raised {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return why + "; what does not move has the tangent None" * ("NoneType" in why)
    if random.drew:
        return "draws random numbers"
    if (write := functionalise(graph) or functionalise(of_map)) is not None:
        return f"writes to a tensor, {_name(write)}"
    graph.eliminate_dead_code()
    arguments = graph.find_nodes(op="placeholder")[: len(domain)]
    if not is_additive:
        return "is not additive"
    if any(node.users for node in arguments):
        return "has a derivative that reads what it is given"
    if op := _op_without_derivative(of_map):
        return f"has a part with no derivative, {op}"
    if not is_transposed or not all(_is_transposed_at(at, number) for number in (-2.0, 0.0, 2.0)):
        return _DETACHED
    return ""


def _transpose(image_of: Map, roots: Sequence[Tensor], cotangents: Sequence[Tensor]) -> list[Tensor | None]:
    roots = [t.detach().requires_grad_() for t in roots]
    with torch.enable_grad():
        images = image_of(roots)
    pairs = [
        (image, t) for image, t in zip(images, cotangents, strict=True) if image is not None and image.requires_grad
    ]
    if not pairs:
        return [None] * len(roots)
    return list(torch.autograd.grad([i for i, _ in pairs], roots, [t for _, t in pairs], allow_unused=True))


def _op_without_derivative(graph: fx.Graph) -> str:
    """Return the name of an op through which a result depends on an argument, and whose derivative is none or zeros.

    Autograd's view of a map that uses such an op is not the map. The name is empty if there is none.
    """
    graph.eliminate_dead_code()
    depending = set(graph.find_nodes(op="placeholder"))
    for node in graph.nodes:
        if node.op == "call_function" and depending.intersection(node.all_input_nodes):
            name = _name(node)
            is_step = name in BY_ATEN and BY_ATEN[name].continuity is Continuity.STEPS
            if is_step or name == "detach" or node.kwargs.get("rounding_mode"):
                return name
            depending.add(node)
    return ""


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target)).partition(".")[0]


def _is_transposed(image_of: Map, domain: Sequence[Tensor], codomain: Sequence[Tensor]) -> bool:
    """Whether ⟨t, A g⟩ = ⟨Aᵀ t, g⟩ for the transpose that autograd gives, up to rounding."""
    generator = torch.Generator().manual_seed(1)
    gs, ts = (
        [torch.randn(t.shape, generator=generator).to(t.device, t.dtype) for t in ends] for ends in (domain, codomain)
    )
    images, back = image_of(gs), _transpose(image_of, gs, ts)
    ahead = [_product(t, image) for t, image in zip(ts, images, strict=True) if image is not None]
    behind = [_product(t, g) for t, g in zip(back, gs, strict=True) if t is not None]
    # Both sides are the same sum of products in another order, so the error is a multiple of eps times their
    # magnitudes.
    rounding = 64 * max((torch.finfo(t.dtype).eps for t in domain), default=0.0)
    off = sum(p.sum().item() for p in ahead) - sum(p.sum().item() for p in behind)
    return not abs(off) > rounding * sum(p.abs().sum().item() for p in ahead + behind)  # NaN and ∞ decide nothing


def _product(t: Tensor | None, g: Tensor) -> Tensor:
    return (_in_double(t).conj() * _in_double(g)).real


def _is_transposed_at(at: Callable[[float], MapWithEnds], number: float) -> bool:
    """Whether the same holds where all inputs are another number. Where the rule raises there, nothing is known."""
    try:
        return _is_transposed(*at(number))
    except Exception:  # a number outside its domain
        return True


def _is_additive(image_of: Map, domain: Sequence[Tensor], scale: float) -> bool:
    """Whether g + 2h maps to A g + 2 A h, and 3g to 3 A g, up to rounding."""
    generator = torch.Generator().manual_seed(0)
    g, h = (
        [(scale * torch.randn(t.shape, generator=generator)).to(t.device, t.dtype) for t in domain] for _ in range(2)
    )
    image, other = image_of(g), image_of(h)
    total = image_of([a + 2 * b for a, b in zip(g, h, strict=True)])
    thrice = image_of([3 * a for a in g])
    rounding = 64 * max((torch.finfo(t.dtype).eps for t in domain), default=0.0)
    for images in zip(image, other, total, thrice, strict=True):
        if any(t is None for t in images):
            if any(t is not None for t in images):
                return False
            continue
        # An element may be the sum of terms that cancel, of the size of all others together.
        a, b, both, three = (_in_double(t) for t in images)
        size = rounding * float((a.abs() + b.abs()).sum())
        same = functools.partial(torch.allclose, rtol=rounding, atol=size)
        if not (same(both, a + 2 * b) and same(three, 3 * a)):
            return False
    return True


def _in_double(t: Tensor | None) -> Tensor:
    assert t is not None
    return t.detach().to(torch.complex128 if t.is_complex() else torch.float64)


def push_by_transposition(
    rule: DerivativeRule,
    record: CallRecord,
    tangents: Sequence[Tensor | None],
    tensors: Sequence[Tensor],
    outputs: Sequence[Tensor],
    saved: Sequence[Tensor],
) -> list[Tensor | None]:
    """Return the tangents of the outputs: the vjp is `g -> J^T g`, its own vjp at a tangent `J t`.

    Raises:
        DerivativeError: if the vjp is not linear in the cotangent, or cannot be shown to be.
    """
    refusal = objection(rule, "vjp", record, tensors, outputs, saved, [True] * len(tensors))
    if refusal:
        raise DerivativeError(refusal)
    needs = [t is not None for t in tangents]
    moved = [i for i, t in enumerate(tangents) if t is not None]
    live = [i for i, yes in enumerate(record.differentiable) if yes]

    # The vjp pulls g back to Jᵀ g. That is linear in g, so its derivative is Jᵀ at every g, zeros among them, and its
    # own vjp maps t to (Jᵀ)ᵀ t = J t. `torch.func.vjp` needs a point, which does not matter.
    def transposed(*gs: Tensor) -> tuple[Tensor, ...]:
        cotangents: list[Tensor | None] = [None] * len(outputs)
        for i, g in zip(live, gs, strict=True):
            cotangents[i] = g
        gradients = rule.pull(record, cotangents, tensors, outputs, saved, needs)
        return tuple(zeros_if_none(gradients[i], tensors[i]) for i in moved)

    pull = torch.func.vjp(transposed, *(torch.zeros_like(outputs[i]) for i in live))[1]
    pushed = pull(tuple(t for t in tangents if t is not None))
    result: list[Tensor | None] = [None] * len(outputs)
    for position, pushed_one in zip(live, pushed, strict=True):
        result[position] = pushed_one
    return result


def pull_by_transposition(
    rule: DerivativeRule,
    record: CallRecord,
    cotangents: Sequence[Tensor | None],
    tensors: Sequence[Tensor],
    outputs: Sequence[Tensor],
    saved: Sequence[Tensor],
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """Return the gradients of the inputs: the jvp is `t -> J t`, its vjp at a cotangent `J^T g`.

    Raises:
        DerivativeError: if the jvp is not linear in the tangents, or cannot be shown to be.
    """
    refusal = record.refusal
    if refusal is None:
        refusal = objection(rule, "jvp", record, tensors, outputs, saved, needs)
    if refusal:
        raise DerivativeError(refusal)
    moved = [i for i, need in enumerate(needs) if need]
    live = [i for i, g in enumerate(cotangents) if g is not None]  # zeros times an infinite slope would be NaN

    def along(*ts: Tensor) -> tuple[Tensor, ...]:
        tangents: list[Tensor | None] = [None] * len(tensors)
        for i, t in zip(moved, ts, strict=True):
            tangents[i] = t
        pushed = rule.push(record, tangents, tensors, outputs, saved)
        if any(t is not None and not t.requires_grad for t in (pushed[i] for i in live)):
            raise DerivativeError(
                f"the jvp of {rule.name} computes outside of PyTorch (NumPy, a kernel), so no vjp follows from it: "
                f"give one with `@{rule.name}.vjp`. Where an output does not move, the jvp returns None for it."
            )
        return tuple(zeros_if_none(pushed[i], outputs[i]) for i in live)

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


def zeros_if_none(derivative: Tensor | None, like: Tensor) -> Tensor:
    """Return a derivative, `None` standing for zeros."""
    return torch.zeros_like(like) if derivative is None else derivative
