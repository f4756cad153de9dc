"""First-order agreement: the gradient that a function returns against the numeric derivative of its forward.

For each differentiated input, random directions are compared first: <gx, v> against <g, J v>. Where they
disagree, or where the forward has a kink, single elements are compared: there a kink gives an interval for
each element of the gradient, which random directions cannot (several kinks at once would mix).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from pullback.check.cases.case import Case, is_differentiable
from pullback.check.derivative.oracle import (
    SIGNIFICANT,
    Estimate,
    differentiate,
    refine_by_complex_step,
    working_epsilon,
)
from pullback.check.derivative.trial import Raised, Run, as_real, forward, vjp
from pullback.check.subject import Subject

Status = Literal["ok", "wrong", "inconclusive"]

_NEGLIGIBLE = 1e-8
"""A disagreement below this part of the output's own size may be what an iteration left unconverged."""
_FINER = 2.0**-12
"""A wrong element is looked at again with steps this much smaller, for a ripple that the first ones missed."""
_NEARBY = 64
_NEARBY_DISTANCE = 1e-4
MAX_ELEMENTS = 48
"""Elements of one input that are compared singly."""
_AGREEMENT = {
    torch.float64: 1e-7,
    torch.complex128: 1e-7,
    torch.float32: 5e-4,
    torch.complex64: 5e-4,
    torch.float16: 5e-2,
    torch.bfloat16: 0.25,
}
"""Relative disagreement below which a gradient is called right: its own accuracy is another matter."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The gradient of one input against the numeric derivative.

    Attributes:
        order: which differentiated input.
        status: "wrong" beyond ten error bars; "inconclusive" where the bar is too wide to tell.
        expected, got, bar: at the worst element (or direction).
        index: of the worst element; `None` if only a direction was compared.
        failing, compared: elements (or directions) that disagree, and all that were compared.
        flat: no disagreeing element moves the output at all.
        moves: some element does move the output.
        kink: the point is a kink for this input.
        low, high: the interval of right values.
    """

    order: int
    status: Status
    expected: float = 0.0
    got: float = 0.0
    bar: float = 0.0
    index: tuple[int, ...] | None = None
    failing: int = 0
    compared: int = 0
    flat: bool = False
    moves: bool = True
    kink: bool = False
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True)
class FirstOrder:
    """What one case showed.

    Attributes:
        case: the arguments.
        run: the forward; its graph may be freed.
        cotangents: one per differentiable output.
        gradients: one per differentiated input, `None` where the graph gave none.
        comparisons: one per differentiated input.
        error: what the backward raised, then there is no gradient.
    """

    case: Case
    run: Run
    cotangents: list[Tensor]
    gradients: list[Tensor | None] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    error: Raised | None = None

    @property
    def wrong(self) -> list[Comparison]:
        """The comparisons that disagree."""
        return [c for c in self.comparisons if c.status == "wrong"]


def first_order(
    subject: Subject,
    case: Case,
    generator: torch.Generator,
    directions: int,
    numeric: Case | None = None,
    settled: Collection[int] = (),
    unit: bool = False,
) -> FirstOrder | None:
    """Compare the gradient of every differentiated input of `case` with the numeric derivative.

    Args:
        subject: what is audited.
        case: the arguments.
        generator: of directions and cotangents.
        directions: random directions for each input.
        numeric: the same values in the form the forward is sampled on (contiguous, say); `case` by default.
        settled: inputs, by order, that need no comparison.
        unit: take cotangents of ones, which read better, instead of random ones, which show more.

    Returns:
        The comparison, or `None` if the case has nothing to differentiate: the forward refuses it, an
        output is not finite, or no output is differentiable.
    """
    try:
        run = forward(subject, case)
    except Raised:
        return None
    positions = run.differentiable
    if not positions and subject.kind == "callable":
        positions = [p for p, out in enumerate(run.outputs) if is_differentiable(out)]
    roots = [run.outputs[p] for p in positions]
    if not roots or not all(bool(torch.isfinite(root).all()) for root in roots):
        return None
    cotangents = [torch.ones_like(root) if unit else random_like(root, generator) for root in roots]
    if not run.differentiable:
        gradients: list[Tensor | None] = [None] * len(run.inputs)
    else:
        try:
            gradients = vjp(run, cotangents)
        except Raised as error:
            return FirstOrder(case, run, cotangents, error=error)
    oracle = _Oracle(subject, numeric or case, positions, cotangents)
    comparisons = [
        _compare_input(oracle, order, gradients[order], generator, directions)
        for order in range(len(case.wrt))
        if case.wrt[order] == _twins(case, order)[0] and order not in settled
    ]
    return FirstOrder(case, run, cotangents, gradients, comparisons)


def agrees(subject: Subject, result: FirstOrder, order: int, gradient: Tensor, generator: torch.Generator) -> bool:
    """Whether `gradient` would be the right one for the `order`-th input of a case."""
    oracle = _Oracle(subject, result.case, result.run.differentiable, result.cotangents)
    return _compare_input(oracle, order, gradient, generator, directions=2).status == "ok"


def moves_output(subject: Subject, result: FirstOrder, order: int, output: int, generator: torch.Generator) -> bool:
    """Whether the `output`-th differentiable output changes, to first order, with the `order`-th input."""
    position = result.run.differentiable[output]
    oracle = _Oracle(subject, result.case, [position], [result.cotangents[output]])
    estimate = oracle.derivative(order, random_like(result.case.tensors[order], generator))
    size = estimate.low.abs() > SIGNIFICANT * estimate.bar
    return bool((size & estimate.valid).any())


def random_like(t: Tensor, generator: torch.Generator) -> Tensor:
    """Return a tensor of random signs and magnitudes in [0.5, 1], exact in every dtype."""

    def draw() -> Tensor:
        magnitude = torch.randint(4, 9, t.shape, generator=generator) / 8
        return magnitude * (torch.randint(0, 2, t.shape, generator=generator) * 2 - 1)

    if t.is_complex():
        return torch.complex(draw().to(torch.float64), draw().to(torch.float64)).to(t.dtype)
    return draw().to(t.dtype)


def _twins(case: Case, order: int) -> list[int]:
    """Positions that hold the very same tensor as the `order`-th input."""
    value = case.values[case.wrt[order]]
    return [p for p in case.wrt if case.values[p] is value]


class _Oracle:
    """Samples the forward of one case along directions in one of its inputs, projected on the cotangents."""

    def __init__(self, subject: Subject, case: Case, positions: Sequence[int], cotangents: Sequence[Tensor]) -> None:
        self.subject = subject
        self.case = case
        self.positions = positions
        self.cotangents = cotangents
        self.weights = torch.cat([as_real(g) for g in cotangents])
        self.analytic: bool | None = None

    def sample(self, order: int, change: Tensor, imaginary: bool = False) -> Tensor:
        twins = _twins(self.case, order)
        moved = [
            t + change if position in twins else (t.to(change.dtype) if imaginary else t)
            for t, position in zip(self.case.tensors, self.case.wrt, strict=True)
        ]
        run = forward(self.subject, self.case, moved=moved)
        outs = [run.outputs[p] for p in self.positions]
        return torch.cat([out.imag.flatten() if imaginary else as_real(out) for out in outs])

    def derivative(self, order: int, direction: Tensor) -> Estimate:
        """Estimate J v for `direction`; the step follows the size of the input."""
        return differentiate(lambda t: self.sample(order, (t * direction).to(direction.dtype)))

    def refine(self, order: int, direction: Tensor, estimate: Estimate) -> Estimate:
        """Sharpen an estimate by the complex step, where the forward takes complex inputs."""
        if direction.is_complex() or self.analytic is False:
            return estimate
        step = 1e-20
        try:
            tangent = self.sample(order, direction.to(torch.complex128) * (1j * step), imaginary=True) / step
        except (Raised, RuntimeError):
            self.analytic = False
            return estimate
        return refine_by_complex_step(estimate, tangent)

    def project(self, estimate: Estimate) -> tuple[float, float, float]:
        """Return the interval of <g, J v> and its bar; NaN where some element has no derivative."""
        relevant = self.weights != 0
        if not bool((estimate.valid | ~relevant).all()):
            return (torch.nan,) * 3
        low, high = self.weights * estimate.low, self.weights * estimate.high
        return (
            float(torch.minimum(low, high)[relevant].sum()),
            float(torch.maximum(low, high)[relevant].sum()),
            float((self.weights.abs() * estimate.bar)[relevant].sum()),
        )


def _compare_input(
    oracle: _Oracle, order: int, gradient: Tensor | None, generator: torch.Generator, directions: int
) -> Comparison:
    x = oracle.case.tensors[order]
    if not x.numel():
        return Comparison(order, "ok")
    if gradient is not None and gradient.shape != x.shape:
        return Comparison(order, "ok")  # the engine's own check, or another rule, speaks of shapes
    scale = _step_scale(x)
    results = []
    for _ in range(directions):
        direction = random_like(x, generator) * scale
        results.append(_compare_direction(oracle, order, gradient, direction))
        if results[-1].status != "ok" or results[-1].kink:
            return _compare_elements(oracle, order, gradient, generator, results[-1])
    return max(results, key=lambda c: abs(c.expected - c.got))


def _step_scale(x: Tensor) -> Tensor:
    """Return the length of a step for each element: 1, less for a tensor of tiny values, never lost in rounding."""
    size = x.detach().abs()
    largest = float(size.max())
    return size.mul(1e-6).clamp(min=min(largest, 1.0) if largest > 0 else 1.0).to(x.dtype)


def _compare_direction(oracle: _Oracle, order: int, gradient: Tensor | None, direction: Tensor) -> Comparison:
    try:
        estimate = oracle.derivative(order, direction)
    except Raised:
        return Comparison(order, "inconclusive", compared=1)
    v = as_real(direction)
    terms = torch.zeros(1) if gradient is None else (as_real(gradient) * v)[v != 0]
    got, size = float(terms.sum()), float(terms.abs().sum())
    status = _judge(oracle, estimate, got, size, gradient)
    if status != "ok" and bool(estimate.valid.any()):
        refined = oracle.refine(order, direction, estimate)
        if refined is not estimate:
            estimate, status = refined, _judge(oracle, refined, got, size, gradient)
    low, high, bar = oracle.project(estimate)
    return Comparison(
        order,
        status,
        expected=min(max(got, low), high) if status == "ok" else (low + high) / 2,
        got=got,
        bar=bar,
        failing=int(status == "wrong"),
        compared=1,
        flat=bool(estimate.flat.all()),
        moves=not bool(estimate.flat.all()),
        kink=bool(estimate.kink.any()),
        low=low,
        high=high,
    )


def _judge(oracle: _Oracle, estimate: Estimate, got: float, size: float, gradient: Tensor | None) -> Status:
    """Compare one number with its interval.

    `size` bounds the magnitude of the terms that were summed to `got`, whose rounding is not held
    against the gradient.
    """
    low, high, bar = oracle.project(estimate)
    if math.isnan(low):
        return "inconclusive"
    relevant = float((oracle.weights * estimate.low).abs().sum())
    if not math.isfinite(got):
        return "wrong" if bar < 1e-2 * (relevant + 1) else "inconclusive"
    precision = _AGREEMENT[torch.float64]
    if gradient is not None and gradient.numel():
        single = torch.finfo(torch.float32).eps
        precision = max(_AGREEMENT[gradient.dtype], 32 * min(single, working_epsilon(as_real(gradient))))
    distance = max(low - got, got - high, 0.0)
    if distance > SIGNIFICANT * bar + precision * (size + relevant):
        values = float((oracle.weights.abs() * estimate.magnitude)[estimate.valid].sum())
        return "wrong" if distance > _NEGLIGIBLE * values else "inconclusive"
    return "inconclusive" if SIGNIFICANT * bar > 0.1 * max(size, relevant, 1e-300) and bar > 0 else "ok"


def _compare_elements(
    oracle: _Oracle, order: int, gradient: Tensor | None, generator: torch.Generator, suspicion: Comparison
) -> Comparison:
    """Compare single elements; what a direction suspected counts only if an element bears it out."""
    x = oracle.case.tensors[order]
    picked = torch.randperm(x.numel(), generator=generator)[:MAX_ELEMENTS].sort().values.tolist()
    scale = _step_scale(x).flatten()
    results: list[tuple[int, Comparison]] = []
    for flat_index in picked:
        for unit in (1.0, 1j) if x.is_complex() else (1.0,):
            size = float(scale[flat_index].abs())
            direction = torch.zeros(x.numel(), dtype=x.dtype)
            direction[flat_index] = torch.tensor(unit * size, dtype=x.dtype)
            found = _compare_direction(oracle, order, gradient, direction.reshape(x.shape))
            if found.status == "wrong":
                finer = _compare_direction(oracle, order, gradient, (_FINER * direction).reshape(x.shape))
                if finer.status == "ok":
                    found = replace(found, status="inconclusive")
            results.append((flat_index, _per_unit(found, size)))
    wrong = [(i, c) for i, c in results if c.status == "wrong"]
    if wrong and gradient is not None and any(c.kink for _, c in results):
        low, high = _nearby_gradients(oracle, order, generator)
        flat = gradient.detach().flatten()
        wrong = [(i, c) for i, c in wrong if not _in_hull(flat[i], low[i], high[i], c)]
    if not wrong:
        complete = len(picked) == x.numel()
        decided = [c for _, c in results if c.status == "ok"]
        kinked = suspicion.kink or any(c.kink for _, c in results)
        if suspicion.status == "wrong" and not complete and not kinked:
            return suspicion
        return Comparison(order, "ok" if decided else "inconclusive", compared=len(results), kink=kinked)
    worst_index, worst = max(wrong, key=lambda item: _badness(item[1]))
    return replace(
        worst,
        index=tuple(int(i) for i in torch.unravel_index(torch.tensor(worst_index), x.shape)),
        failing=len(wrong),
        compared=len(results),
        flat=all(c.flat for _, c in wrong),
        moves=any(c.moves and c.status != "inconclusive" for _, c in results),
    )


def _nearby_gradients(oracle: _Oracle, order: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest gradient at points around a kink.

    Where three elements tie, a sort may hand the middle one's gradient to any of three places, though to move it
    up or down alone shows only two of them. Every limit of gradients nearby is a generalised derivative
    (F. H. Clarke, Optimization and Nonsmooth Analysis, 1983, section 2.5), so their hull is accepted. That these
    gradients are right is what the ordinary cases test.
    """
    found = []
    for _ in range(_NEARBY):
        moved = {
            p: t + _NEARBY_DISTANCE * _step_scale(t) * random_like(t, generator)
            for p, t in zip(oracle.case.wrt, oracle.case.tensors, strict=True)
            if t.numel()
        }
        try:
            run = forward(oracle.subject, oracle.case.with_values(moved))
            gradient = vjp(run, oracle.cotangents)[order]
        except (Raised, ValueError):
            continue
        if gradient is not None:
            found.append(gradient.detach().flatten())
    x = oracle.case.tensors[order].detach().flatten()
    stacked = torch.stack(found) if found else torch.full_like(x, torch.nan).unsqueeze(0)
    low, high = _real(stacked).amin(0), _real(stacked).amax(0)
    for value in _real(x).unique():  # what one of several tied elements got, another may get
        tied = _real(x) == value
        low[tied], high[tied] = low[tied].min(), high[tied].max()
    return low, high


def _real(t: Tensor) -> Tensor:
    return t.real if t.is_complex() else t


def _in_hull(value: Tensor, low: Tensor, high: Tensor, c: Comparison) -> bool:
    """Whether a value lies among the gradients nearby.

    Where these leave the interval of the one-sided derivatives, several inputs tie and 64 samples do not reach
    the ends of their hull: twice its width is accepted then.
    """
    value = _real(value)
    width = high - low
    slack = 1e-2 * (low.abs() + high.abs())
    if float(low) < c.low - float(slack) or float(high) > c.high + float(slack):
        slack = slack + width
    return bool((low - slack <= value) & (value <= high + slack))


def _per_unit(c: Comparison, size: float) -> Comparison:
    """Turn a comparison along `size` times a unit vector into one of the partial derivative."""
    return replace(
        c,
        expected=c.expected / size,
        got=c.got / size,
        bar=c.bar / size,
        low=c.low / size,
        high=c.high / size,
    )


def _badness(c: Comparison) -> float:
    gap = abs(c.expected - c.got)
    return math.inf if math.isnan(gap) else gap
