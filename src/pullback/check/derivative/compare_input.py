"""The gradient of one input against the numeric derivative: along directions, then element by element.

At a kink the right values are a set. Where single elements do not determine it, gradients at nearby points bound it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pullback.check.derivative.oracle import (
    SIGNIFICANT,
    Estimate,
    is_sharp,
    working_epsilon,
)
from pullback.check.derivative.sampler import (
    Sampler,
    are_probabilities,
    balanced_part,
    random_like,
    step_scale,
    symmetric_part,
)
from pullback.check.trial import Raised, as_real, forward, vjp

# Three equal elements have six orders, and so up to six gradients nearby: 64 random moves meet all of them, but for one
# run in 1000. Of the 24 orders of four, they miss some in most runs: see `in_hull`.
_NEARBY = 64
_NEARBY_DISTANCE = 1e-4


def nearby_gradients(sampler: Sampler, input_index: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest gradient at points around a kink.

    Where three elements tie, a sort may route the middle one's gradient to any of three places, though moving it up or
    down alone shows only two of them. Every limit of nearby gradients is a generalised derivative (F. H. Clarke,
    Optimization and Nonsmooth Analysis, 1983, section 2.5), so their hull is accepted. That these gradients themselves
    are right is tested on the ordinary cases.
    """
    found = []
    for trial in range(_NEARBY):
        moved = {
            p: t + _moved(t, generator, uneven=trial % 2 == 1)
            for p, t in zip(sampler.case.wrt, sampler.case.tensors, strict=True)
            if t.numel()
        }
        try:
            run = forward(sampler.subject, sampler.case.with_values(moved))
            gradient = vjp(run, sampler.cotangents)[input_index]
        except (Raised, ValueError):
            continue
        if gradient is not None:
            found.append(gradient.detach().flatten())
    x = sampler.case.tensors[input_index].detach().flatten()
    stacked = torch.stack(found) if found else torch.full_like(x, torch.nan).unsqueeze(0)
    low, high = _real(stacked).amin(0), _real(stacked).amax(0)
    for value in _real(x).unique():  # tied elements are interchangeable
        tied = _real(x) == value
        low[tied], high[tied] = low[tied].min(), high[tied].max()
    return low, high


def _moved(t: Tensor, generator: torch.Generator, uneven: bool) -> Tensor:
    """A small change of each element; an uneven one isolates elements and reaches the ends of the hull."""
    change = _NEARBY_DISTANCE * step_scale(t) * random_like(t, generator)
    return change * 2.0 ** -torch.randint(0, 9, t.shape, generator=generator) if uneven else change


def _real(t: Tensor) -> Tensor:
    return t.real if t.is_complex() else t


def in_hull(value: Tensor, low: Tensor, high: Tensor, interval: tuple[float, float]) -> bool:
    """Whether a value lies among the gradients nearby.

    If these leave the interval of the one-sided derivatives, several inputs tie and 64 samples do not reach the ends of
    their hull: then it is extended by its width to either side.
    """
    # At a distance of 1e-4 a gradient differs from its limit by 1e-4 of the second derivative, far within one per cent
    # unless that is a hundred times the gradient.
    value = _real(value)
    width = high - low
    slack = 1e-2 * (low.abs() + high.abs())
    if float(low) < interval[0] - float(slack) or float(high) > interval[1] + float(slack):
        slack = slack + width
    return bool((low - slack <= value) & (value <= high + slack))


Status = Literal["ok", "wrong", "inconclusive"]

_SMALL = 1e-4
"""A disagreement below this part of the derivative is small: solvers usually stop at tolerances of 1e-6 to 1e-4."""
_BESIDE = 1e-7
"""A disagreement below this part of the largest element of the gradient is small, too."""
_NOTHING = 1e-12
"""Gradient that counts as 0 where all outputs are 0, and so do not show the rounding of intermediates."""
_CANCELLED, _STEEPEST = 16.0, 100.0
"""Units in the last place of the terms of a gradient that cancel; how much larger than the cotangent these may be."""
_NEGLIGIBLE = 1e-8
"""Disagreements below this part of the output's own size may be due to an unconverged iteration."""
Restriction = Callable[[Tensor, Tensor], Tensor]
"""Direction and input -> the part of the direction along which to move the input."""
_ENOUGH = 16
"""If none of this many elements is wrong, a wrong direction is attributed to the other elements, if there are any."""
_UNEQUAL = (1.0, 0.75, 0.875, 0.625, 0.9375)
"""Lengths of the steps by which several elements are moved together, all with the same sign."""
MAX_ELEMENTS = 48
"""Elements of one input that are compared singly."""
SAMPLES = 82
"""Forwards per element with a correct gradient: two ladders of 41. A wrong one takes several times as many."""
_SHOWN = 3
"""Wrong elements that suffice as evidence for a slow function."""
_FEWEST = 8
"""Elements that are compared however many forwards they take."""
# Between 1.4 and 7 times √eps: a gradient that has lost half of its digits to cancellation still agrees.
_AGREEMENT = {
    torch.float64: 1e-7,
    torch.complex128: 1e-7,
    torch.float32: 5e-4,
    torch.complex64: 5e-4,
    torch.float16: 5e-2,
    torch.bfloat16: 0.25,
}
"""Relative tolerance: the accuracy of the gradient itself is checked by other rules."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The gradient of one input against the numeric derivative.

    Attributes:
        input_index: which differentiated input.
        status: "wrong" beyond ten error bars; "inconclusive" where the bar is too wide to tell.
        expected, got, bar: at the worst element (or direction).
        index: index of the worst element; `None` if only a direction was compared.
        failing, compared: elements (or directions) that disagree, and all that were compared.
        flat: no disagreeing element changes the output at all.
        still: number of disagreeing elements that do not.
        moves: some element does change the output.
        kink: the point is a kink for this input.
        low, high: the interval of right values.
        largest: the largest magnitude in the gradient.
    """

    input_index: int
    status: Status
    expected: float = 0.0
    got: float = 0.0
    bar: float = 0.0
    index: tuple[int, ...] | None = None
    failing: int = 0
    compared: int = 0
    flat: bool = False
    still: int = 0
    moves: bool = True
    kink: bool = False
    low: float = 0.0
    high: float = 0.0
    largest: float = 0.0

    @property
    def gap(self) -> float:
        """Distance of the gradient from the nearest correct value."""
        return max(self.low - self.got, self.got - self.high, 0.0)

    @property
    def size(self) -> float:
        """Magnitude of the derivative."""
        return max(abs(self.low), abs(self.high))

    @property
    def is_small(self) -> bool:
        """Whether a disagreement has the size of an unconverged iteration's error, or of rounding beside the rest."""
        return self.weight <= 1

    @property
    def weight(self) -> float:
        """The gap, in units of the largest one that is small."""
        if not math.isfinite(self.got):
            return math.inf
        relative = _SMALL * max(abs(self.got), abs(self.low), abs(self.high))
        beside = _BESIDE * self.largest if math.isfinite(self.largest) else 0.0
        return self.gap / max(relative, beside, math.ulp(0.0))


def compare_input(
    sampler: Sampler,
    input_index: int,
    gradient: Tensor | None,
    generator: torch.Generator,
    directions: int,
    elements: int = MAX_ELEMENTS,
    within: Restriction | None = None,
) -> Comparison:
    """Compare the gradient of one input along random directions, and in case of doubt by elements.

    The directions are `within` a subspace: by default the symmetric ones at a symmetric matrix and, if the result is
    inconclusive at probabilities, those that keep their sums, since a function may be defined on these alone.
    """
    compared = _compare(sampler, input_index, gradient, generator, directions, elements, within or symmetric_part)
    if compared.status == "inconclusive" and within is None and are_probabilities(sampler.case.tensors[input_index]):
        compared = _compare(sampler, input_index, gradient, generator, directions, elements, balanced_part)
    if gradient is None or not gradient.numel():
        return compared
    return replace(compared, largest=float(gradient.detach().abs().max()))


def agree_together(
    sampler: Sampler,
    input_indices: Sequence[int],
    gradients: Sequence[Tensor | None] | Mapping[int, Tensor | None],
    generator: torch.Generator,
) -> bool:
    """Whether the float64 gradients of some inputs agree along one direction in all of them together.

    That takes few samples, however many the inputs are. An input whose gradient is below 1e-7 of the others' is lost.
    """
    tensors = {input_index: sampler.case.tensors[input_index] for input_index in input_indices}
    if any(x.dtype != torch.float64 or not x.numel() for x in tensors.values()):
        return False
    found = {
        input_index: torch.zeros_like(x) if (g := gradients[input_index]) is None else g
        for input_index, x in tensors.items()
    }
    if any(
        found[input_index].shape != x.shape or found[input_index].dtype != x.dtype for input_index, x in tensors.items()
    ):
        return False
    directions = {k: symmetric_part(random_like(x, generator) * step_scale(x), x) for k, x in tensors.items()}
    gradient = torch.cat([found[k].flatten() for k in input_indices])
    terms = gradient * torch.cat([directions[k].flatten() for k in input_indices])
    try:
        estimate = sampler.brief_derivative(directions)
    except Raised:
        return False
    status = _judge(sampler, estimate, float(terms.sum()), float(terms.abs().sum()), 0.0, gradient)
    return status == "ok" and is_sharp(estimate)


def _compare(
    sampler: Sampler,
    input_index: int,
    gradient: Tensor | None,
    generator: torch.Generator,
    directions: int,
    elements: int,
    within: Restriction,
) -> Comparison:
    x = sampler.case.tensors[input_index]
    if not x.numel():
        return Comparison(input_index, "ok")
    if gradient is not None and gradient.shape != x.shape:
        return Comparison(input_index, "ok")  # the engine's own check, or another rule, speaks of shapes
    scale = step_scale(x)
    results = []
    for _ in range(directions):
        direction = within(random_like(x, generator) * scale, x)
        results.append(_compare_direction(sampler, input_index, gradient, direction))
        if results[-1].status != "ok" or results[-1].kink:
            doubted = direction, results[-1]
            return _compare_elements(sampler, input_index, gradient, generator, doubted, elements, within)
    return max(results, key=lambda c: abs(c.expected - c.got))


def _compare_direction(sampler: Sampler, input_index: int, gradient: Tensor | None, direction: Tensor) -> Comparison:
    """Compare <gx, v> with the numeric derivative along one direction v."""
    along = _DirectionalProduct(sampler, input_index, gradient, direction)
    try:
        estimate = sampler.derivative(
            input_index,
            direction,
            disagrees=lambda estimate: along.judge(estimate) == "wrong",
            agrees=lambda estimate: along.judge(estimate) == "ok",
        )
    except Raised:
        return Comparison(input_index, "inconclusive", compared=1)
    estimate, status = along.judged(estimate)
    low, high, bar = sampler.project(estimate)
    got = along.got
    # Quotients are compared with both numbers to a tenth of each. If these are more than half of `got` apart, none fits
    # both.
    is_far = math.isfinite(got) and max(low - got, got - high) > 0.5 * abs(got)
    if status == "wrong" and is_far and sampler.bears_out(input_index, direction, got, (low + high) / 2):
        status = "inconclusive"
    return Comparison(
        input_index,
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


class _DirectionalProduct:
    """The product <gx, v> of a returned gradient with a direction.

    Attributes:
        got: its value; 0 for a missing gradient.
    """

    def __init__(self, sampler: Sampler, input_index: int, gradient: Tensor | None, direction: Tensor) -> None:
        self._sampler, self._input_index, self._gradient, self._direction = sampler, input_index, gradient, direction
        v = as_real(direction)
        terms = torch.zeros(1) if gradient is None else (as_real(gradient) * v)[v != 0]
        self.got, self._size = float(terms.sum()), float(terms.abs().sum())
        # Terms below the least normal number of the gradient's dtype may have been lost to underflow.
        tiny = torch.finfo((direction if gradient is None else gradient).dtype).tiny
        self._underflow, self._norm = tiny * float(v.abs().sum()), float(v.norm())
        self._largest = float(sampler.case.tensors[input_index].abs().max())

    def judge(self, estimate: Estimate) -> Status:
        """Compare it with an estimate of the derivative."""
        cancelled = 0.0
        if self._gradient is not None:
            cancelled = _cancelled(self._sampler, estimate, self._gradient, self._largest) * self._norm
        lost = self._underflow + cancelled
        return _judge(self._sampler, estimate, self.got, self._size, lost, self._gradient)

    def judged(self, estimate: Estimate) -> tuple[Estimate, Status]:
        """The verdict, on a sharper estimate where that one is too blunt, and on one as coarse as a narrow dtype."""
        status = self.judge(estimate)
        if status != "ok" and bool(estimate.valid.any()):
            refined = self._sampler.refine(self._input_index, self._direction, estimate)
            if refined is not estimate:
                estimate, status = refined, self.judge(refined)
        if status == "wrong" and self._gradient is not None:
            epsilon = max(torch.finfo(self._gradient.dtype).eps, working_epsilon(as_real(self._gradient)))
            if epsilon > torch.finfo(torch.float64).eps:
                estimate = self._sampler.blurred(self._input_index, self._direction, estimate, epsilon)
                status = self.judge(estimate)
        return estimate, status


def _cancelled(sampler: Sampler, estimate: Estimate, gradient: Tensor, largest: float) -> float:
    """Return a bound on the rounding error of an element of a gradient whose terms cancel, from their size.

    A term is about max |w| · min(max |y| / max |x|, `_STEEPEST`), with the cotangent w; its rounding error is
    `_CANCELLED` · eps times that. The gradient of a norm over two elements, or of
    one, is 0 although none of its terms is.
    """
    if not largest or not estimate.magnitude.numel():
        return 0.0
    steepness = float(estimate.magnitude.max()) / largest
    # For y homogeneous of degree 1, as a norm is, Σ xᵢ ∂y/∂xᵢ = y (Euler): partial derivatives have the size of y / x.
    terms = float(sampler.weights.abs().max()) * min(steepness, _STEEPEST)
    return _CANCELLED * torch.finfo(gradient.dtype).eps * terms


def _judge(
    sampler: Sampler, estimate: Estimate, got: float, size: float, lost: float, gradient: Tensor | None
) -> Status:
    """Compare one number with its interval.

    `size` bounds the magnitude of the terms that were summed to `got`; the rounding error of these is not counted.
    Neither is `lost`, a bound on what the terms may have lost to underflow.
    """
    # With d the distance from `got` to [low, high], the gradient is wrong if
    #     d > 10 bar + precision (Σ |gx v| + Σ |g J v|) + lost.
    # The sums bound the terms of both sides: each term may be off by `precision`, though the terms cancel.
    low, high, bar = sampler.project(estimate)
    if math.isnan(low):
        return "inconclusive"
    relevant = float((sampler.weights * estimate.low).abs().sum())
    if not math.isfinite(got):
        return "wrong" if bar < 1e-2 * (relevant + 1) else "inconclusive"
    # A gradient in float64 that holds float32 numbers was computed in float32: then 32 ulps of these are allowed. Never
    # of a narrower dtype, since right gradients of few digits, as 2 x at 0.5, fit any.
    precision = _AGREEMENT[torch.float64]
    if gradient is not None and gradient.numel():
        single = torch.finfo(torch.float32).eps
        precision = max(_AGREEMENT[gradient.dtype], 32 * min(single, working_epsilon(as_real(gradient))))
    distance = max(low - got, got - high, 0.0)
    negligible = _NEGLIGIBLE * float((sampler.weights.abs() * estimate.magnitude)[estimate.valid].sum())
    if not estimate.magnitude.any():
        negligible = _NOTHING * float(sampler.weights.abs().sum())
    if distance > SIGNIFICANT * bar + precision * (size + relevant) + lost:
        return "wrong" if distance > negligible else "inconclusive"
    # "ok" means d ≤ 10 bar ≤ a tenth of the terms, up to rounding: an error of a tenth would have shown.
    telling = 0.1 * max(size, relevant) or negligible  # if both are 0, the smallest difference that counts
    return "inconclusive" if SIGNIFICANT * bar > telling else "ok"


def _compare_elements(
    sampler: Sampler,
    input_index: int,
    gradient: Tensor | None,
    generator: torch.Generator,
    doubted: tuple[Tensor, Comparison],
    most: int,
    within: Restriction,
) -> Comparison:
    """Compare single elements; a disagreement along a direction counts only if an element confirms it.

    If none of those that are drawn does, one is looked for by halving the direction: that of a tail, or of a mask.
    """
    direction, suspicion = doubted
    x = sampler.case.tensors[input_index]
    # Where a share p of many elements is wrong, n random ones are all right with probability (1 − p)ⁿ: below 5 % for 48
    # if p is 7 %, for 16 if p is 18 %.
    chosen = torch.randperm(x.numel(), generator=generator)[:most].sort().values.tolist()
    picked, results = _by_element(sampler, input_index, gradient, chosen, most, within)
    wrong = [(i, c) for i, c in results if c.status == "wrong"]
    is_missed = not wrong and suspicion.status == "wrong" and len(picked) < x.numel()
    if is_missed and not any(c.kink for c in (suspicion, *(c for _, c in results))):
        element = _by_halves(sampler, input_index, gradient, direction, within)
        _, more = _by_element(sampler, input_index, gradient, [element], most, within)
        results += more
        wrong = [(i, c) for i, c in more if c.status == "wrong"]
    if (
        wrong
        and gradient is not None
        and (any(c.kink for _, c in results) or _bent(sampler, input_index, results, within))
    ):
        low, high = nearby_gradients(sampler, input_index, generator)
        flat = gradient.detach().flatten()
        wrong = [(i, c) for i, c in wrong if not in_hull(flat[i], low[i], high[i], (c.low, c.high))]
    if not wrong:
        complete = len(picked) == x.numel()
        decided = [c for _, c in results if c.status == "ok"]
        kinked = suspicion.kink or any(c.kink for _, c in results)
        if suspicion.status == "wrong" and not complete and not kinked and len(picked) >= _ENOUGH:
            return suspicion
        return Comparison(input_index, "ok" if decided else "inconclusive", compared=len(results), kink=kinked)
    worst_index, worst = max(wrong, key=lambda item: _badness(item[1]))
    return replace(
        worst,
        index=tuple(int(i) for i in torch.unravel_index(torch.tensor(worst_index), x.shape)),
        failing=len(wrong),
        compared=len(results),
        flat=all(c.flat for _, c in wrong),
        still=sum(c.flat for _, c in wrong),
        moves=any(c.moves and c.status != "inconclusive" for _, c in results),
    )


_HALVING_STEP = 1e-4
"""Step of the quotients that choose between halves, relative to the direction: they need few digits."""


def _by_halves(
    sampler: Sampler, input_index: int, gradient: Tensor | None, direction: Tensor, within: Restriction
) -> int:
    """Return an element at which a gradient is wrong, if it is wrong along a direction.

    Both products are linear in the direction, and so is their gap: one of its halves has at least half of it, and that
    of one half tells that of the other.
    """
    x, flat = sampler.case.tensors[input_index], direction.flatten()

    def gap(chosen: Tensor) -> float:
        part = within(torch.zeros_like(flat).index_put((chosen,), flat[chosen]).reshape(x.shape), x)
        along = _DirectionalProduct(sampler, input_index, gradient, part)
        with suppress(Raised):
            return sampler.quotient(input_index, part, _HALVING_STEP) - along.got
        return 0.0

    chosen = flat.nonzero().flatten()
    whole = gap(chosen)
    while len(chosen) > 1:
        half, other = chosen.chunk(2)
        of_half = gap(half)
        if abs(of_half) >= abs(whole - of_half):
            chosen, whole = half, of_half
        else:
            chosen, whole = other, whole - of_half
    return int(chosen[0])


def _by_element(
    sampler: Sampler, input_index: int, gradient: Tensor | None, chosen: list[int], most: int, within: Restriction
) -> tuple[list[int], list[tuple[int, Comparison]]]:
    """Compare the gradient at chosen elements, of a complex input along both axes, while samples are left.

    Returns:
        The elements that were compared, and each comparison with its element.
    """
    x = sampler.case.tensors[input_index]
    scale = step_scale(x).flatten()
    results: list[tuple[int, Comparison]] = []
    most_samples = sampler.taken + most * SAMPLES
    for count, element in enumerate(chosen):
        is_shown = most < MAX_ELEMENTS and sum(c.status == "wrong" for _, c in results) >= _SHOWN
        if is_shown or (count >= _FEWEST and sampler.taken > most_samples):
            return chosen[:count], results
        for unit in (1.0, 1j) if x.is_complex() else (1.0,):
            size = float(scale[element].abs())
            direction = torch.zeros(x.numel(), dtype=x.dtype)
            direction[element] = torch.tensor(unit * size, dtype=x.dtype)
            found = _compare_direction(sampler, input_index, gradient, within(direction.reshape(x.shape), x))
            results.append((element, _per_unit(found, size)))
    return chosen, results


def _bent(sampler: Sampler, input_index: int, results: list[tuple[int, Comparison]], within: Restriction) -> bool:
    """Whether the derivative along a mixture of elements differs from the sum of theirs: then there is none.

    With equal values, moving one element up or down may leave the median unchanged, while moving all does not.
    """
    # Where y is differentiable, its derivative along Σ aᵢ eᵢ is Σ aᵢ ∂y/∂xᵢ. The aᵢ are positive and neighbours differ,
    # so that the mixture moves equal elements apart.
    x = sampler.case.tensors[input_index]
    if x.is_complex() or len(results) < 2:
        return False
    mixture = torch.zeros(x.numel(), dtype=x.dtype)
    scale = step_scale(x).flatten()
    for place, (i, _) in enumerate(results):
        mixture[i] = scale[i] * _UNEQUAL[place % len(_UNEQUAL)]
    try:
        direction = within(mixture.reshape(x.shape), x)
        estimate = sampler.derivative(
            input_index, direction, disagrees=lambda _: True, agrees=lambda e: bool(e.valid.all())
        )
    except Raised:
        return False
    low, high, bar = sampler.project(estimate)
    sizes = [abs(float(mixture[i])) for i, _ in results]
    parts = sum(float(mixture[i]) * (c.low + c.high) / 2 for i, c in results)
    bar += sum(size * c.bar for size, (_, c) in zip(sizes, results, strict=True))
    precision = _AGREEMENT[x.dtype] * sum(size * abs(c.low) for size, (_, c) in zip(sizes, results, strict=True))
    return bool(estimate.kink.any()) or max(low - parts, parts - high) > SIGNIFICANT * bar + precision


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
