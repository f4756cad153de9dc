"""Shared parts of the rules about nested derivatives: the measurement, and programs that repeat it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from pullback.check.cases.branch_points import BRANCH_POINTS
from pullback.check.cases.repro import bind
from pullback.check.clock import Stopwatch
from pullback.check.contexts.compare import preamble
from pullback.check.contexts.eager import EagerReference, base_setting, setting_of
from pullback.check.derivative.agreement import show
from pullback.check.derivative.forward_mode import has_jvp
from pullback.check.derivative.nesting import (
    Nested,
    Nesting,
    batched_nestings,
    compare_nestings,
    composite,
    linearized,
    nestings,
    sizes,
)
from pullback.check.derivative.sampler import direction_like
from pullback.check.trial import Raised
from pullback.report.model import Evidence, Finding, Severity

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_SEED = 11
_ORDERS = (2, 3)
_SHARE = 0.05
"""Part of the budget for the branch points."""
_ORDINALS = {2: "second", 3: "third"}
_known: WeakKeyDictionary[Audit, list[Measured]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Measured:
    """The derivatives of one order, on one case."""

    setting: EagerReference
    directions: Sequence[Sequence[Tensor]]
    below: Nesting
    nested: Nested
    order: int


def measured(audit: Audit) -> list[Measured]:
    """The derivatives of order 2 and 3 on the example and at its branch points, up to the first that is wrong; cached.

    There are none of a function whose gradient is not the derivative, or whose double backward is wrong.
    """
    if audit not in _known:
        _known[audit] = list(_measured(audit)) if _is_derivative(audit) else []
    return _known[audit]


def _is_derivative(audit: Audit) -> bool:
    first, second = audit.base_result, audit.second
    is_right = first is not None and not first.wrong and audit.intent is None and audit.subject.relaxation is None
    steady = audit.nonlinearity is None and not audit.backward_draws and audit.redrawn is None
    return is_right and steady and second is not None and second.status in ("ok", "raised")


def _measured(audit: Audit) -> Iterator[Measured]:
    setting = base_setting(audit)
    if setting is None or audit.is_slow or audit.subject.is_interpreted:
        return
    more = [*batched_nestings(2), *([linearized(2)] if audit.options.deep else [])]
    third = [n for n in nestings(3) if (n.interface == "torch.func" or n.modes == "rrr") and not is_lost(audit, n)]
    found = list(_of_each_order(audit, setting, {2: [*nestings(2), *more], 3: third}))
    yield from found
    refused = {nesting for m in found for nesting in m.nested.refused}
    tried = {k: _of_one_interface([n for n in nestings(k) if n not in refused]) for k in _ORDERS}
    tried = {k: [n for n in tried[k] if not is_lost(audit, n)] for k in _ORDERS}
    clock = Stopwatch()
    for label, change in BRANCH_POINTS.items():
        for case in audit.domain.keep(audit.base.map_inputs(change, label)):
            is_over = not audit.has_time() or clock.seconds() > _SHARE * audit.options.budget
            if is_over or any(at_fault(audit, m.nested) for m in found):
                return
            there = setting_of(audit.subject, case)
            if there is not None and not case.doubtful:
                found = list(_of_each_order(audit, there, tried))
                yield from found


def _of_one_interface(found: Sequence[Nesting]) -> list[Nesting]:
    """Those in `torch.func`, or without any the others: they run the same rules."""
    return [nesting for nesting in found if nesting.interface == "torch.func"] or list(found)


def _of_each_order(audit: Audit, setting: EagerReference, tried: Mapping[int, Sequence[Nesting]]) -> Iterator[Measured]:
    generator = torch.Generator().manual_seed(_SEED)
    phi = composite(setting.function(), setting.inputs, setting.cotangents, sizes(setting.values))
    below = nestings(1)[0]
    directions = [[direction_like(x, generator) for x in setting.inputs]]
    for order in _ORDERS:
        directions = [*directions, [direction_like(x, generator) for x in setting.inputs]]
        audit.events.beat()
        try:
            nested = compare_nestings(phi, setting.inputs, directions, below, tried[order], few_samples=True)
        except Raised:
            return
        yield Measured(setting, directions, below, nested, order)
        if not nested.right or at_fault(audit, nested):
            return
        below = nested.right[0]


_LEVELS = 2
"""Levels of forward mode from which PyTorch loses the derivative of a `jvp`."""


def is_lost(audit: Audit, nesting: Nesting) -> bool:
    """Whether a nesting has the levels of forward mode at which PyTorch loses the derivative of every `jvp`."""
    functions = [audit.subject, *(inner.subject for inner in audit.inside)]
    defines = any(subject.kind == "function" and has_jvp(subject) for subject in functions)
    return defines and nesting.modes.count("f") >= _LEVELS


def at_fault(audit: Audit, nested: Nested) -> list[Nesting]:
    """Return the nestings whose wrong derivative is not PyTorch's loss."""
    return [nesting for nesting in nested.wrong if not is_lost(audit, nesting)]


def differing_nestings(
    audit: Audit, rule: str, found: Measured, wrong: Sequence[Nesting], severity: Severity, hint: str, whose: str = ""
) -> Finding:
    """Build the finding that some nestings silently give another number than the derivative has."""
    worst, nested, case = wrong[0], found.nested, found.setting.case
    got, expected, order = nested.values[worst], nested.expected, _ORDINALS[found.order]
    others = f" and {len(wrong) - 1} other{'s' * (len(wrong) > 2)}" if len(wrong) > 1 else ""
    right = f"; {nested.right[0]} is right" if nested.right else "; no nesting is right"
    where = f" (with {case.phrase})" if case.is_variant else ""
    evidence = Evidence(
        expected,
        got,
        nested.bar,
        where=f"{order} derivative along random directions",
        dtype="float64",
        failing=len(wrong),
        directions=len(nested.values),
    )
    message = f"the {order} derivative by {worst}{others} is {show(got)}, the numeric one is {show(expected)}"
    message += right + where + whose
    tail = _tail(found, worst)
    return audit.finding(rule, severity, "wrong", message, case=case, evidence=evidence, tail=tail, hint=hint)


def _tail(found: Measured, wrong: Nesting) -> list[str]:
    """Return lines that print a derivative by a nesting, and by differences of the one below."""
    lines = [
        *preamble(found.setting),
        f"units = {sizes(found.setting.values)}",
        *(bind(f"v{k}", tuple(d)) for k, d in enumerate(found.directions)),
        f"directions = [{', '.join(f'v{k}' for k in range(found.order))}]",
        *_PHI,
    ]
    *inner, last = range(found.order)
    below = _program(found.below, inner)
    moved = "[x {} 1e-3 * v for x, v in zip(points, directions[" + str(last) + "])]"
    return [
        *lines,
        *_definition("nested", _program(wrong, list(range(found.order)))),
        *_definition("below", below),
        f"slope = (below({moved.format('+')}) - below({moved.format('-')})) / 2e-3",
        f"print('{wrong}:', nested(points).item(), ' differences of the derivative below:', slope.item())",
    ]


_GRADIENT = "dot(torch.func.grad({name}, argnums=tuple(range(len(xs))))(*xs), directions[{k}])"
_TAKEN = {
    ("torch.func", "f"): "torch.func.jvp({name}, xs, directions[{k}])[1]",
    ("torch.func", "r"): _GRADIENT,
    ("linearize", "f"): "torch.func.linearize({name}, *xs)[1](*directions[{k}])",
    ("linearize", "r"): _GRADIENT,
    ("vmap", "f"): "torch.func.vmap(lambda *v: torch.func.jvp({name}, xs, v)[1])(*twice(directions[{k}]))[1]",
    ("vmap", "r"): (
        "dot([g[1] for g in torch.func.vmap(torch.func.vjp({name}, *xs)[1])({name}(*xs).new_ones(2))], directions[{k}])"
    ),
}
_PHI = (
    "def phi(*xs):",
    "    xs = [x + (x - point) ** 2 / 4 for x, point in zip(xs, points)]  # so that no tangent is constant",
    "    terms = zip(call(*xs), cotangents, units)",
    "    return sum((w.conj() * (out / unit).exp()).real.sum() for out, w, unit in terms)",
    "def dot(a, b):",
    "    return sum((x.conj() * y).real.sum() for x, y in zip(a, b))",
    "def twice(tensors):",
    "    return [t.expand(2, *t.shape) for t in tensors]",
)


def _definition(name: str, body: Sequence[str]) -> list[str]:
    return [f"def {name}(points):", *(f"    {line}" for line in body)]


def _program(nesting: Nesting, directions: Sequence[int]) -> list[str]:
    """Return the lines of a function of `points` that returns a derivative."""
    if nesting.interface != "autograd":
        lines, name = [], "phi"
        for k, mode in zip(directions, reversed(nesting.modes), strict=True):
            lines += [f"def d{k + 1}(*xs):", f"    return {_TAKEN[nesting.interface, mode].format(name=name, k=k)}"]
            name = f"d{k + 1}"
        return [*lines, f"return {name}(*points)"]
    lines = ["leaves = xs = [x.detach().clone().requires_grad_() for x in points]"]
    dual = "f" in nesting.modes
    if dual:
        k = directions[len(nesting.modes) - 1 - nesting.modes.index("f")]
        lines += [
            "import torch.autograd.forward_ad as fwad",
            "with fwad.dual_level():",
            f"    xs = [fwad.make_dual(x, v) for x, v in zip(leaves, directions[{k}])]",
        ]
    steps = ["value = phi(*xs)"]
    for k, mode in zip(directions, reversed(nesting.modes), strict=True):
        if mode == "f":
            steps += ["value, xs = fwad.unpack_dual(value).tangent, leaves"]
        else:
            grads = "torch.autograd.grad(value, xs, create_graph=True, materialize_grads=True)"
            steps += [f"value = dot({grads}, directions[{k}])"]
    steps += ["return value.detach().clone()"]
    return [*lines, *(f"    {step}" if dual else step for step in steps)]
