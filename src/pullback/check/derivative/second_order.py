"""Double backward against finite differences of first-order gradients.

The probe is a non-linear composite, phi(x) = sum w * out**2, whose cotangent 2 w out depends on x: a linear one
has a constant cotangent, with which neither a missing second-order term nor an ineffective `once_differentiable` shows.
<u, H v> is taken by autograd in the two ways that users take it, `autograd.grad` and `.backward()`, since some errors
are attached to nodes that only the latter runs; the reference is the numeric derivative of the first-order gradient
along v. An input without a gradient (None) is held fixed: its author declares it a constant, and its second derivative
is undefined.

Where the first order is not a derivative (straight-through, or wrong), the composite has no reference. Then the
backward itself is probed: b(x, g) with g fixed, differentiated in x, against its finite differences.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.derivative.agreement import difference, gradients
from pullback.check.derivative.intent import Intent
from pullback.check.derivative.oracle import SIGNIFICANT, Estimate, confirmed
from pullback.check.derivative.recorder import recording
from pullback.check.derivative.sampler import are_probabilities, direction_like
from pullback.check.subject import Subject
from pullback.check.trial import (
    ForwardRun,
    Raised,
    as_real,
    forward,
    guarded,
    kept_from_being_freed,
    standard_cotangents,
    vjp,
)
from pullback.dtypes import has_reals

if TYPE_CHECKING:
    from pullback.check.facts import ExampleFacts


def hidden_saved(subject: Subject, case: Case) -> int:
    """Count the saved tensors that are neither input nor output, and change with the inputs.

    Return `None` if the forward takes no other inputs of this kind.
    """
    if subject.kind != "function":
        return 0
    here = _hidden(subject, case)
    try:
        there = _hidden(subject, case.map_inputs(_other, case.label))
    except Raised:
        return 0
    if len(here) != len(there):
        return max(len(here), len(there))
    return sum(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(here, there, strict=True))


def _other(t: Tensor) -> Tensor:
    return t.roll(1, -1) if are_probabilities(t) else t * 0.875


def _hidden(subject: Subject, case: Case) -> list[Tensor]:
    run = forward(subject, case)
    known = {(t.data_ptr(), t.shape) for t in (*run.inputs, *run.outputs)}
    known |= {(v.data_ptr(), v.shape) for v in case.all_tensors.values()}
    known |= {(v.data_ptr(), v.shape) for v in run.arguments if isinstance(v, Tensor)}
    with recording(subject) as calls:
        try:
            vjp(run, standard_cotangents(run.roots))
        except Raised:
            return []
    kept = [t.detach() for call in calls for t in call.kept]
    return [t.clone() for t in kept if has_reals(t) and not t.is_complex() and (t.data_ptr(), t.shape) not in known]


Status = Literal["ok", "wrong", "raised", "inconclusive"]
_AFTER_ANOTHER = "autograd.grad after another backward"
_WAYS = ("autograd.grad", ".backward()", _AFTER_ANOTHER)
_AGREEMENT = 1e-6
_MOST_INPUTS = 3
"""Number of inputs up to which the blocks of the Hessian are probed."""
_NEAR = 1 / 64
"""Fraction of the step to take where a full one leaves the domain."""
_CLEAR = re.compile(
    r"once_differentiable|differentiate twice|not implemented|not supported|unsupported|double backward"
    r"|second(-| )order|second derivative|not differentiable|compatible with \.grad",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class SecondOrder:
    """Result of double backward.

    Attributes:
        status: "raised" if every way raised.
        way: one of `_WAYS`, the one that `status` is about.
        expected, got, bar: <u, H v>, numeric and by autograd.
        error: the exception, if there was one.
        composite: whether the composite was probed, or the backward alone.
        changed: the first-order gradient itself changes under create_graph; where.
        hidden: how many saved tensors are neither inputs nor outputs.
        u, v: the directions, one tensor for each input.
        unconverged: whether it is wrong, but right with ten times the iterations.
        uses_output: whether what is differentiated twice holds the output itself, beside the gradient.
    """

    status: Status
    way: str = ""
    expected: float = 0.0
    got: float = 0.0
    bar: float = 0.0
    error: Raised | None = None
    composite: bool = True
    changed: str = ""
    hidden: int = 0
    u: tuple[Tensor, ...] = ()
    v: tuple[Tensor, ...] = ()
    unconverged: bool = False
    uses_output: bool = True

    @property
    def is_after_another(self) -> bool:
        """Whether a first derivative was taken of the same graph before."""
        return self.way == _AFTER_ANOTHER

    @property
    def is_clear(self) -> bool:
        """Whether the error says that double backward is not supported."""
        return self.error is not None and _CLEAR.search(str(self.error.error)) is not None

    @property
    def is_refusal(self) -> bool:
        """Whether the audited code raises that error on purpose."""
        return self.error is not None and self.error.is_deliberate


def second_order(audit: ExampleFacts, intent: Intent | None) -> SecondOrder:
    """Probe double backward on the working example, of a function that may have an intent not to be a derivative."""
    first = audit.base_result
    is_meant = intent is None or intent.sign == "identity"  # which is right where it changes no gradient
    right = first is not None and not first.wrong and is_meant and audit.subject.relaxation is None
    probe = _Probe(audit, audit.base, composite=right)
    changed = probe.changes_under_create_graph(audit.names)
    try:
        outcomes = probe.outcomes()
    except Raised:  # a parameter left its domain on the way
        probe = probe.nearer()
        outcomes = probe.outcomes()
    if audit.nonlinearity is not None or audit.backward_draws or audit.redrawn is not None:
        outcomes = [_unjudged(outcome) for outcome in outcomes]
    elif intent is not None and not right:
        outcomes = [_lost_or_nothing(outcome) for outcome in outcomes]
        is_smooth = intent.sign == "worded"  # the second derivative of a staircase does not matter
        quiet = not any(outcome.status in ("wrong", "raised") for outcome in outcomes)
        for block in probe.blocks() if is_smooth and quiet else ():
            found = [_lost_or_nothing(outcome) for outcome in block.outcomes()]
            if any(outcome.status == "wrong" for outcome in found):
                probe, outcomes = block, found
                break
    worst = min(outcomes, key=_worst_first)
    raised = next((o.error for o in outcomes if o.error is not None), None)
    return SecondOrder(
        "wrong" if changed else worst.status,
        worst.way,
        worst.expected,
        worst.got,
        worst.bar,
        raised,
        right,
        changed,
        hidden_saved(audit.subject, audit.base) if worst.status == "wrong" and not math.isnan(worst.got) else 0,
        tuple(probe.u),
        tuple(probe.v),
    )


def second_order_on(audit: ExampleFacts, case: Case, composite: bool) -> SecondOrder:
    """Probe double backward on another case, of a function that is right on its example."""
    probe = _Probe(audit, case, composite)
    worst = min(probe.outcomes(), key=_worst_first)
    return replace(worst, composite=probe.composite, u=tuple(probe.u), v=tuple(probe.v))


def second_order_at_fixed_cotangent(audit: ExampleFacts) -> SecondOrder:
    """Probe the derivative of the backward at a fixed cotangent, without another use of the forward's graph."""
    probe = _Probe(audit, audit.base, composite=False, uses_output=False)
    (outcome,) = probe.outcomes()
    return replace(outcome, composite=False, uses_output=False, u=tuple(probe.u), v=tuple(probe.v))


def _worst_first(outcome: SecondOrder) -> int:
    return ("wrong", "raised", "inconclusive", "ok").index(outcome.status)


def _lost_or_nothing(outcome: SecondOrder) -> SecondOrder:
    """Accept only a missing term as a fault of a backward that is intentionally not a derivative.

    Where it reads a saved output, autograd differentiates that by the backward itself, and finite differences by
    the forward: the two differ as the author means them to.
    """
    lost = abs(outcome.got) < _AGREEMENT * abs(outcome.expected)
    return outcome if lost else _unjudged(outcome)


def _unjudged(outcome: SecondOrder) -> SecondOrder:
    """Declare a disagreement inconclusive: the backward is not linear in the cotangent, or draws random numbers."""
    return replace(outcome, status="inconclusive") if outcome.status == "wrong" else outcome


@dataclass(frozen=True, slots=True)
class _Answer:
    """<H u, v> by double backward and the magnitude of its terms, or the exception."""

    way: str
    got: float = 0.0
    size: float = 0.0
    error: Raised | None = None

    def judged(self, expected: float, bar: float) -> SecondOrder:
        """Compare with the numeric value."""
        if self.error is not None:
            return SecondOrder("raised", self.way, expected, bar=bar, error=self.error)
        if math.isnan(expected):
            return SecondOrder("inconclusive", self.way)
        # `got` sums differences of two gradients. `size` sums the larger of these, whose rounding errors remain in
        # them. "ok" needs ten bars within a tenth of that, so that an error of a tenth would have shown.
        scale = self.size + abs(expected)
        if not abs(self.got - expected) <= SIGNIFICANT * bar + _AGREEMENT * scale:
            return SecondOrder("wrong", self.way, expected, self.got, bar)
        wide = SIGNIFICANT * bar > 0.1 * scale and bar > 0
        return SecondOrder("inconclusive" if wide else "ok", self.way, expected, self.got, bar)


class _Probe:
    """One function phi of the inputs, its gradient, and the second derivative along a direction."""

    def __init__(self, audit: ExampleFacts, case: Case, composite: bool, uses_output: bool = True) -> None:
        subject, generator = audit.subject, audit.generator
        self.subject = subject
        self.case = case
        self.composite = composite
        self.uses_output = uses_output
        self.few_samples = audit.is_slow or audit.subject.is_interpreted
        self.u = [direction_like(t, generator) for t in case.tensors]
        constant = [g is None for g in gradients(subject, case)]
        v = [direction_like(t, generator) for t in case.tensors]
        self.v = [torch.zeros_like(d) if held else d for d, held in zip(v, constant, strict=True)]

    def nearer(self) -> _Probe:
        """The same probe with much smaller steps."""
        near = copy.copy(self)
        near.v = [_NEAR * v for v in self.v]
        return near

    def blocks(self) -> Iterator[_Probe]:
        """Yield a probe for each block of the Hessian, if there are a few inputs."""
        n = len(self.u)
        for i, j in itertools.product(range(n), range(n)) if 1 < n <= _MOST_INPUTS else ():
            block = copy.copy(self)
            block.u = [u if k == i else torch.zeros_like(u) for k, u in enumerate(self.u)]
            block.v = [v if k == j else torch.zeros_like(v) for k, v in enumerate(self.v)]
            yield block

    def gradient(self, run: ForwardRun, create_graph: bool, retain_graph: bool | None = None) -> list[Tensor | None]:
        """Return the gradient of the composite, or b(x, g) for a fixed g."""
        weights = standard_cotangents(run.roots)
        if not self.composite:
            return vjp(run, weights, create_graph=create_graph, retain_graph=retain_graph)
        with guarded("backward"), kept_from_being_freed(run.outputs):
            inputs = [x for x in run.inputs if x.requires_grad]
            phi = _phi(run, weights)
            return list(torch.autograd.grad(phi, inputs, None, retain_graph, create_graph, allow_unused=True))

    def outcomes(self) -> list[SecondOrder]:
        """The result of double backward by each of `_WAYS`."""
        answers = self._answers()
        if all(answer.error is not None for answer in answers):
            return [answer.judged(torch.nan, torch.nan) for answer in answers]

        def disagrees(estimate: Estimate) -> bool:
            found = {answer.judged(*self._project(estimate)).status for answer in answers}
            return bool(found & {"wrong", "inconclusive"})

        def agrees(estimate: Estimate) -> bool:
            return not disagrees(estimate)

        estimate = confirmed(self._curve, disagrees, self.case.tensors, agrees if self.few_samples else None)
        if self._leaves_out(~estimate.valid | estimate.kink):
            answers = self._answers()
        expected, bar = self._project(estimate)
        return [answer.judged(expected, bar) for answer in answers]

    def _leaves_out(self, rough: Tensor) -> bool:
        """Drop the elements of the gradient without a derivative here, unless all are; return whether any was."""
        if not bool(rough.any()) or bool(rough.all()):
            return False
        sizes = [as_real(u).numel() for u in self.u]
        parts = zip(self.u, rough.split(sizes), strict=True)
        self.u = [_zeroed(u, part) for u, part in parts]
        return True

    def _answers(self) -> list[_Answer]:
        answers = [self._answer(way) for way in (_WAYS if self.uses_output else _WAYS[:1])]
        # That a graph cannot be used twice is for PB206 to tell.
        return [answer for answer in answers if answer.way != _AFTER_ANOTHER or answer.error is None]

    def _answer(self, way: str) -> _Answer:
        try:
            return _Answer(way, *self.by_autograd(way))
        except Raised as error:
            return _Answer(way, error=error)

    def _curve(self, t: float) -> Tensor:
        """Return the gradient G at x + t v."""
        moved = [x + (t * v).to(x.dtype) for x, v in zip(self.case.tensors, self.v, strict=True)]
        case = self.case.with_values(dict(zip(self.case.wrt, moved, strict=True)))
        gradient = self.gradient(forward(self.subject, case), create_graph=False)
        flat = [as_real(x if g is None else g) * (g is not None) for x, g in zip(moved, gradient, strict=True)]
        return torch.cat(flat)

    def _project(self, estimate: Estimate) -> tuple[float, float]:
        """Return <u, dG/dv> and its bar; NaN where an element of G that u weighs has no derivative."""
        weights = torch.cat([as_real(u) for u in self.u])
        weighed = weights != 0
        if bool(((~estimate.valid | estimate.kink) & weighed).any()):
            return torch.nan, torch.nan
        weights, slope, bar = weights[weighed], estimate.low[weighed], estimate.bar[weighed]
        return float(weights @ slope), float(weights.abs() @ bar)

    def by_autograd(self, way: str) -> tuple[float, float]:
        """Return <H u, v> by double backward, and the magnitude of its terms.

        phi is added to <u, G> and its own part taken off again, so that a graph always exists: where G came
        back without one, its part is silently missing, as it would be in a user's sum of losses. Where the output is
        not to be used again, the squares of the inputs are added in place of phi.
        """
        # With the Jacobian H of G, ∇(phi + <u, G>) = ∇phi + Hᵀ u, so that
        # <v, ∇(phi + <u, G>) − ∇phi> = <v, Hᵀ u> = <u, H v>,
        # as the finite difference of G along v gives it. If G is the gradient of phi, H is symmetric; the Jacobian of
        # b(x, g) at a fixed g need not be.
        run = forward(self.subject, self.case)
        if way == _AFTER_ANOTHER:
            self.gradient(run, create_graph=False, retain_graph=True)
        gradient = self.gradient(run, create_graph=True)
        with guarded("double backward"):
            total = self._added(run)
            for u, g in zip(self.u, gradient, strict=True):
                if g is not None and g.requires_grad:
                    total = total + _real_dot(u, g)
            with_phi = self._derivative(total, run, way)
        alone = forward(self.subject, self.case)
        with guarded("double backward"):
            only_phi = self._derivative(self._added(alone), alone, way)
        terms = [(as_real(a) - as_real(b)) * as_real(v) for a, b, v in zip(with_phi, only_phi, self.v, strict=True)]
        size = sum(float((as_real(a).abs() * as_real(v).abs()).sum()) for a, v in zip(with_phi, self.v, strict=True))
        return float(torch.cat(terms).sum()), size

    def _added(self, run: ForwardRun) -> Tensor:
        if self.uses_output:
            return _phi(run, standard_cotangents(run.roots))
        return torch.stack([_real_dot(x, x) for x in run.inputs if x.requires_grad]).sum()

    def _derivative(self, scalar: Tensor, run: ForwardRun, way: str) -> list[Tensor]:
        with kept_from_being_freed(run.outputs):
            if way != ".backward()":
                found: list[Tensor | None] = list(
                    torch.autograd.grad(scalar, run.inputs, allow_unused=True, retain_graph=True)
                )
            else:
                scalar.backward(retain_graph=True)
                found = [leaf.grad for leaf in run.inputs]
        return [torch.zeros_like(x) if g is None else g for x, g in zip(run.inputs, found, strict=True)]

    def changes_under_create_graph(self, names: list[str]) -> str:
        """Return how the first-order gradient differs if its graph is built; empty if it does not."""
        try:
            plain = self.gradient(forward(self.subject, self.case), create_graph=False)
            built = self.gradient(forward(self.subject, self.case), create_graph=True)
        except Raised:
            return ""
        where = difference(plain, [None if g is None else g.detach() for g in built])
        return f"the gradient of {names[where.tensor_index]} changes under create_graph: {where}" if where else ""


def _zeroed(u: Tensor, where: Tensor) -> Tensor:
    """A direction with zeros where a flat mask over real and imaginary parts is set."""
    parts = torch.view_as_real(u) if u.is_complex() else u
    kept = parts.masked_fill(where.view(parts.shape), 0)
    return torch.view_as_complex(kept) if u.is_complex() else kept


def _phi(run: ForwardRun, weights: list[Tensor]) -> Tensor:
    # The cotangent of each output is 2 w · out, in the complex case w · conj(2 out), which moves with x: by the product
    # rule the second derivative has a term through J and one through the cotangent.
    terms = [_real_dot(w, root * root) for w, root in zip(weights, run.roots, strict=True)]
    return torch.stack(terms).sum()


def _real_dot(a: Tensor, b: Tensor) -> Tensor:
    product = a.conj() * b if a.is_complex() or b.is_complex() else a * b
    return product.real.sum() if product.is_complex() else product.sum()
