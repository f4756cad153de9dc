"""First-order agreement: the gradient that a function returns against the numeric derivative of its forward.

For each differentiated input, random directions are compared first: <gx, v> against <g, J v>. Where they
disagree, or where the forward has a kink, single elements are compared: there a kink gives an interval for
each element of the gradient, which random directions cannot (several kinks at once would mix).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pullback.check.case import Case, is_differentiable
from pullback.check.clock import Stopwatch
from pullback.check.derivative.compare_input import MAX_ELEMENTS, Comparison, agree_together, compare_input
from pullback.check.derivative.oracle import SIGNIFICANT, Estimate
from pullback.check.derivative.sampler import Sampler, cotangent_like, positions_of, random_like
from pullback.check.subject import Subject
from pullback.check.trial import ForwardRun, Raised, forward, vjp

_FLOAT8 = 1
"""Bytes of a dtype that PyTorch only converts and does not compute with."""
# At most 48 · 82 · 2 ms = 8 s for an input, 8 · 82 · 20 ms = 13 s, or 3 · 82 · 0.1 s = 25 s.
_ELEMENTS = ((2e-3, MAX_ELEMENTS), (2e-2, 8), (1e-1, 3), (math.inf, 1))
"""Number of elements to compare singly, at `SAMPLES` forwards each, by the seconds that one takes at most."""
FEW = 3
"""Elements that are compared of a slow function."""
_LONG = 2.0
"""Seconds of one comparison after which few elements of each further input are compared."""
_TOO_LONG = 5.0
"""Seconds of one comparison after which no further input is, once the gradient of one is wrong."""
_NUDGES, _OF_NOISE = 4, 4.0
"""Runs on inputs that differ in the last bit, and the multiple of their spread that counts as noise."""


@dataclass(frozen=True)
class FirstOrder:
    """First-order comparison on one case.

    Attributes:
        case: the arguments.
        run: the forward; its graph may be freed.
        cotangents: one per differentiable output.
        gradients: one per differentiated input, `None` where the graph returned none.
        comparisons: one per differentiated input.
        error: the exception of the backward; then there is no gradient.
        left_out: indices of the inputs that were not compared for lack of time.
        seconds: duration of the comparison.
    """

    case: Case
    run: ForwardRun
    cotangents: list[Tensor]
    gradients: list[Tensor | None] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    error: Raised | None = None
    left_out: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def weighed_against(self, other: FirstOrder) -> FirstOrder:
        """The comparison of a variant, with disagreements weighed against the gradients of another case, too."""
        largest = {c.input_index: c.largest for c in other.comparisons if math.isfinite(c.largest)}
        pairs = [(c, max(c.largest, largest.get(c.input_index, 0.0))) for c in self.comparisons]
        return replace(self, comparisons=[replace(c, largest=size) for c, size in pairs])

    @property
    def wrong(self) -> list[Comparison]:
        """The comparisons that disagree."""
        return [c for c in self.comparisons if c.status == "wrong"]

    @property
    def severe(self) -> list[Comparison]:
        """The disagreements that may be errors: on ordinary, valid inputs, finite and not small."""
        if self.case.extreme or self.case.doubtful:
            return []
        return [c for c in self.wrong if not c.is_small and (math.isfinite(c.got) or not self.case.is_variant)]


def elements_for(seconds: float) -> int:
    """Return how many elements of an input to compare singly, by the duration of a forward."""
    return next(elements for limit, elements in _ELEMENTS if seconds < limit)


def first_order(
    subject: Subject,
    case: Case,
    generator: torch.Generator,
    directions: int,
    numeric: Case | None = None,
    skip_inputs: Collection[int] = (),
    unit: bool = False,
    elements: int = MAX_ELEMENTS,
    should_continue: Callable[[], bool] = lambda: True,
    few_samples: bool = False,
) -> FirstOrder | None:
    """Compare the gradient of every differentiated input of `case` with the numeric derivative.

    Args:
        subject: the audited function.
        case: the arguments.
        generator: source of directions and cotangents.
        directions: random directions for each input.
        numeric: the same values in the form in which the forward is sampled (contiguous, say); `case` by default.
        skip_inputs: indices of the inputs that need no comparison.
        unit: use cotangents of ones, which are easier to read, instead of random ones, which detect more.
        elements: maximum number of elements of an input that are compared singly; fewer where this forward takes long.
        should_continue: whether to compare one more input.
        few_samples: take few samples where gradients agree, of all inputs together, then of each; so it is, too, where
            this forward takes long.

    Returns:
        The comparison, or `None` if the case has nothing to differentiate: the forward refuses it, an
        output is not finite or in 8 bits, or no output is differentiable. If the output is not finite, a
        backward that raises is still reported.
    """
    clock = Stopwatch()
    try:
        run = forward(subject, case)
    except Raised:
        return None
    if (fewer := elements_for(clock.seconds())) <= FEW:  # one measurement tells no more
        elements, few_samples = min(elements, fewer), True
    positions = run.differentiable
    if not positions and subject.kind == "callable":
        positions = [p for p, out in enumerate(run.outputs) if is_differentiable(out)]
    roots = [run.outputs[p] for p in positions]
    if not roots or any(root.dtype.itemsize == _FLOAT8 for root in roots):
        return None
    cotangents = [torch.ones_like(root) if unit else cotangent_like(root, generator) for root in roots]
    if not all(bool(torch.isfinite(root).all()) for root in roots):
        return None if case.is_variant else _of_a_backward_that_raises(case, run, cotangents)
    if not run.differentiable:
        gradients: list[Tensor | None] = [None] * len(run.inputs)
    else:
        try:
            gradients = vjp(run, cotangents)
        except Raised as error:
            return FirstOrder(case, run, cotangents, error=error)
    sampler = Sampler(subject, numeric or case, positions, cotangents, few_samples)
    input_indices = [
        k for k in range(len(case.wrt)) if case.wrt[k] == positions_of(case, k)[0] and k not in skip_inputs
    ]
    if few_samples and len(input_indices) > 1 and agree_together(sampler, input_indices, gradients, generator):
        comparisons = [Comparison(k, "ok", compared=1) for k in input_indices]
        return FirstOrder(case, run, cotangents, gradients, comparisons, seconds=clock.seconds())
    comparisons, left_out = [], []
    for input_index in input_indices:
        is_settled = clock.seconds() > _TOO_LONG and any(c.status == "wrong" and not c.is_small for c in comparisons)
        if is_settled or not should_continue():
            left_out.append(input_index)
            continue
        most = elements if clock.seconds() < _LONG else min(elements, FEW)
        found = compare_input(sampler, input_index, gradients[input_index], generator, directions, most)
        comparisons.append(_unless_noise(subject, case, cotangents, gradients, found))
    return FirstOrder(case, run, cotangents, gradients, comparisons, None, left_out, clock.seconds())


def _of_a_backward_that_raises(case: Case, run: ForwardRun, cotangents: list[Tensor]) -> FirstOrder | None:
    """Return the comparison of a case that has no numeric derivative, if its backward raises."""
    try:
        vjp(run, cotangents)
    except Raised as error:
        return FirstOrder(case, run, cotangents, error=error)
    return None


def _unless_noise(
    subject: Subject, case: Case, cotangents: Sequence[Tensor], gradients: Sequence[Tensor | None], c: Comparison
) -> Comparison:
    """Declare a 16-bit comparison inconclusive if one input ulp changes the gradient by as much.

    Terms that cancel, as in a norm over two elements, have a rounding error of their own size, which nothing else
    measures.
    """
    gradient = gradients[c.input_index]
    if c.status != "wrong" or gradient is None or gradient.dtype.itemsize != 2 or not math.isfinite(c.got):
        return c
    # A gradient that is exact for inputs a rounding away is as good as the dtype allows (the backward is backward
    # stable). Moves of 7/16 to 15/16 of epsilon show how far that may be; a few may miss the farthest, so a multiple is
    # allowed.
    spread = 0.0
    for seed in range(_NUDGES):
        generator = torch.Generator().manual_seed(seed)
        epsilon = torch.finfo(gradient.dtype).eps
        nudged = {id(t): t + epsilon * t * random_like(t.abs(), generator) for t in case.tensors}
        moved = case.with_values({p: nudged[id(case.values[p])] for p in case.wrt})
        try:
            there = vjp(forward(subject, moved), cotangents)[c.input_index]
        except Raised:
            return c
        if there is not None and there.shape == gradient.shape:
            spread = max(spread, float((there - gradient).abs().nan_to_num(nan=0.0).max()))
    return replace(c, status="inconclusive") if c.gap <= _OF_NOISE * spread else c


_FEW = 8
"""Elements that decide where a direction does not: of another input's gradient nearly all disagree."""


def agrees(
    subject: Subject, result: FirstOrder, input_index: int, gradient: Tensor, generator: torch.Generator
) -> bool:
    """Whether `gradient` would be the right one for an input; along one direction alone if the function is slow."""
    sampler = Sampler(subject, result.case, result.run.differentiable, result.cotangents)
    if result.seconds > _LONG:
        return agree_together(sampler, [input_index], {input_index: gradient}, generator)
    return compare_input(sampler, input_index, gradient, generator, directions=2, elements=_FEW).status == "ok"


def moves_output(
    subject: Subject, result: FirstOrder, input_index: int, output: int, generator: torch.Generator
) -> bool:
    """Whether the `output`-th differentiable output changes, to first order, with an input."""
    position = result.run.differentiable[output]
    sampler = Sampler(subject, result.case, [position], [result.cotangents[output]])
    direction = random_like(result.case.tensors[input_index], generator)
    return _moves(sampler.derivative(input_index, direction, disagrees=_moves))


def _moves(estimate: Estimate) -> bool:
    return bool(((estimate.low.abs() > SIGNIFICANT * estimate.bar) & estimate.valid).any())
