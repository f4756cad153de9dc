"""Facts about one subject on its working example, each computed once, on demand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from pullback._torch import DispatchMode
from pullback.check.case import IF_IT_FITS, Case
from pullback.check.cases import layouts
from pullback.check.cases.domain import Domain
from pullback.check.cases.growth import Growth, growths
from pullback.check.cases.repro import bind_outs
from pullback.check.cases.words import Words, words_in
from pullback.check.clock import Stopwatch
from pullback.check.derivative import intent
from pullback.check.derivative.agreement import TensorDifference, difference, nonlinearity
from pullback.check.derivative.compare_input import MAX_ELEMENTS
from pullback.check.derivative.first_order import FEW, FirstOrder, elements_for, first_order
from pullback.check.derivative.intent import Intent
from pullback.check.derivative.recorder import Trace, trace
from pullback.check.derivative.repeatable import RunDifference, Unwritten, run_difference, unwritten
from pullback.check.events import Events, StepEvents
from pullback.check.find.kernels import recording
from pullback.check.purity.cuts import culprits, deliberate_stop, watch_cuts
from pullback.check.purity.memory import Memory
from pullback.check.subject import Options, Subject
from pullback.check.trial import ForwardRun, Raised, forward, reseed, standard_cotangents, vjp
from pullback.check.weights import kept, with_weights

_DIRECTIONS = 3
"""Number of directions per input on the example; one if only one element is compared."""
_FILLED = "new memory filled with NaN"
_TWICE = "the same call twice"
"""Steps before the rules, as reported to the runner."""


class _Drawing(DispatchMode):
    """Notices operations that draw random numbers."""

    seen = False

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= torch.Tag.nondeterministic_seeded in op.tags
        return op(*args, **(kwargs or {}))


class ExampleFacts:
    """Facts about one subject on its working example.

    Attributes:
        subject: the audited function.
        options: options of the audit.
        base: the working example, in float64 where the forward takes it.
        given: further examples from the user.
        generator: source of all random choices.
        skip: ids of rules and descriptions of cases to leave out.
        guessed: whether the example was guessed, so that a variant may be an invalid input.
        refuted: the comparison on a guess for which the gradient is wrong, in whose place another was taken.
        changed_since_first: where two equal calls of interpreted kernels differ from the first one of the process.
        memory: the subject's state before its first call, if it was recorded.
        pace: seconds that the comparison on the working example took, once it is made.
        compared_before: number of leading inputs that another audit compares.
        should_continue: whether there is time to compare another input of the working example.
    """

    compared_before = 0
    should_continue: Callable[[], bool] = staticmethod(lambda: True)

    def __init__(
        self,
        subject: Subject,
        options: Options,
        base: Case,
        given: Sequence[Case],
        events: Events,
        skip: frozenset[str] = frozenset(),
        guessed: bool = False,
    ) -> None:
        self.subject = subject
        self.skip = skip
        self.guessed = guessed
        self.refuted: FirstOrder | None = None
        self.changed_since_first: TensorDifference | None = None
        self.options = options
        self.base = base
        self.given = given
        self.events = events if isinstance(events, StepEvents) else StepEvents(events)
        self.generator = torch.Generator().manual_seed(options.seed)
        self.clock = Stopwatch()
        self.cases = 0
        self.memory: Memory | None = None
        self.pace = 0.0

    def leaves_out(self, case: Case) -> bool:
        """Whether this variant, or another that may be invalid as well, ended a process."""
        return case.describe() in self.skip or (case.doubtful and IF_IT_FITS in self.skip)

    @functools.cached_property
    def names(self) -> list[str]:
        """Names of the differentiated inputs."""
        return [self.base.names[p] for p in self.base.wrt]

    @functools.cached_property
    def domain(self) -> Domain:
        """The traits of the tensors of the working example, which variants keep."""
        if self.base.required_property:
            return Domain(self.base, lambda other: False)
        return Domain(self.base, None if self.guessed else self.is_valid)

    @functools.cached_property
    def base_run(self) -> ForwardRun:
        """The forward of the working example. Its graph may be used up."""
        return forward(self.subject, self.base)

    @functools.cached_property
    def words(self) -> Words:
        """Words that the subject's module compares its arguments with, by the names of these."""
        return words_in(self.subject.source.file) if self.subject.source else {}

    @functools.cached_property
    def blocks(self) -> Set[int]:
        """Sizes of the blocks of the interpreted kernels that the working example launches."""
        if not self.subject.is_interpreted:
            return frozenset()
        with recording() as world:
            run = forward(self.subject, self.base)
            with suppress(Raised):
                vjp(run, standard_cotangents(run.roots))
        return world.blocks

    @functools.cached_property
    def unwritten(self) -> Unwritten | None:
        """Where forward or backward of the working example return memory that was never written."""
        if _FILLED in self.skip:
            return None
        with self.events.of_first_order(_FILLED, self.subject, self.base):
            return unwritten(self.subject, self.base)

    @functools.cached_property
    def run_difference(self) -> RunDifference | None:
        """Where two runs of the working example from the same random state differ."""
        if {_FILLED, _TWICE} & self.skip:  # the first run of the backward brought a process down: so would these
            return None
        with self.events.of_first_order(_TWICE, self.subject, self.base):
            return run_difference(self.subject, self.base)

    @functools.cached_property
    def trace(self) -> Trace | None:
        """One run of the working example, of a Function, with every operation of its backward."""
        return trace(self.subject, self.base)

    @functools.cached_property
    def outs(self) -> str:
        """The line of a reproduction that binds `outs` to the outputs that are part of the graph."""
        return bind_outs(self.base_run.result)

    @functools.cached_property
    def floating_outs(self) -> str:
        """The same for all that could be, whether the inputs require grad or not."""
        return bind_outs(self.base_run.result, "(o.is_floating_point() or o.is_complex())")

    def compare(
        self,
        case: Case,
        directions: int = 1,
        numeric: Case | None = None,
        skip_inputs: Collection[int] = (),
        unit: bool = False,
        elements: int = MAX_ELEMENTS,
        should_continue: Callable[[], bool] = lambda: True,
    ) -> FirstOrder | None:
        """Compare gradient and numeric derivative on a case; `None` if it is not a valid input.

        The forward is sampled on `numeric`; by default on the same values in the dtypes of the example.
        """
        self.events.beat()
        numeric = numeric or self.widened(case)
        self.cases += 1
        most = min(elements, self.elements)
        result = first_order(
            self.subject,
            case,
            self.generator,
            directions,
            numeric,
            skip_inputs,
            unit,
            most,
            should_continue,
            self.is_slow or self.subject.is_interpreted,  # whose float64 is exact, and takes milliseconds
        )
        known: FirstOrder | None = vars(self).get("base_result")  # which is compared before its variants
        if result is None or known is None or not case.is_variant or case.extreme:
            return result
        return result.weighed_against(known)

    def widened(self, case: Case) -> Case | None:
        """Return the case in the dtypes of the example, where these differ and the forward takes them."""
        widened = layouts.as_dtypes_of(case, self.base)
        is_unchanged = all(a.dtype == b.dtype for a, b in zip(case.tensors, widened.tensors, strict=True))
        return None if is_unchanged or self.draws or not self.is_valid(widened) else widened

    @functools.cached_property
    def elements(self) -> int:
        """Number of elements of an input to compare singly: few if a forward takes milliseconds."""
        seconds = self._seconds_of_forward()
        if elements_for(seconds) > 1:
            seconds = min(seconds, self._seconds_of_forward(), self._seconds_of_forward())
        return elements_for(seconds)

    @property
    def is_slow(self) -> bool:
        """Whether the forward is so slow that agreement is decided by few samples."""
        return self.elements <= FEW

    def _seconds_of_forward(self) -> float:
        clock = Stopwatch()
        forward(self.subject, self.base)
        return clock.seconds()

    @functools.cached_property
    def draws(self) -> bool:
        """Whether the forward draws random numbers from any generator of PyTorch.

        They fall in memory order, so strides change its value, and another dtype gets other numbers.
        """
        with _Drawing() as mode:  # type: ignore[no-untyped-call]
            forward(self.subject, self.base)
        drawn = torch.default_generator.get_state()
        reseed()
        return mode.seen or not torch.equal(drawn, torch.default_generator.get_state())

    @functools.cached_property
    def backward_draws(self) -> bool:
        """Whether the gradient, but not the forward, depends on the state of the random number generators."""
        if self.draws or not self.backward_works:
            return False
        first, second = (
            vjp(run, standard_cotangents(run.roots), seed=seed)
            for seed in (0, 1)
            for run in [forward(self.subject, self.base)]
        )
        return difference(first, second, rounding=0.0) is not None

    @functools.cached_property
    def redrawn(self) -> TensorDifference | None:
        """Difference of the gradient of a forward that draws, where the backward starts from another random state.

        `None` where there is none, or where even two runs from one state differ.
        """
        if not self.backward_works or not self.draws:
            return None
        first, second, other = (
            vjp(run, standard_cotangents(run.roots), seed=seed)
            for seed in (0, 0, 1)
            for run in [forward(self.subject, self.base)]
        )
        is_steady = difference(first, second, rounding=0.0) is None
        return difference(first, other) if is_steady else None

    @functools.cached_property
    def nonlinearity(self) -> tuple[str, TensorDifference] | None:
        """The law of linearity in the cotangent that the backward violates, and where; `None` if all hold."""
        return nonlinearity(self.subject, self.base, self.base_run.roots, self.events.beat)

    @functools.cached_property
    def backward_works(self) -> bool:
        """Whether forward and backward of the working example run; if not, a rule reports why."""
        return self.base_result is not None and self.base_result.error is None

    @functools.cached_property
    def base_result(self) -> FirstOrder | None:
        """The comparison on the working example."""
        skip_inputs = range(self.compared_before)
        directions = min(_DIRECTIONS, self.elements)
        found = self.compare(
            self.base, directions=directions, skip_inputs=skip_inputs, should_continue=self.should_continue
        )
        self.pace = 0.0 if found is None else found.seconds
        return found

    @functools.cached_property
    def growths(self) -> list[Growth]:
        """Shapes of the outputs as functions of each size of the inputs, where the forward takes other sizes."""
        return list(growths(self.subject, self.base))

    def is_valid(self, case: Case) -> bool:
        """Whether the forward takes the case."""
        try:
            return bool(forward(self.subject, case).outputs)
        except Raised:
            return False

    @functools.cached_property
    def with_weights(self) -> tuple[Subject, Case] | None:
        """The subject as a function of its weights, too, and the call of it; `None` where it has none."""
        return with_weights(self.subject, self.base) if self.subject.kind != "function" else None

    def _identity_for_other_weights(self, weighted: Subject, call: Case) -> Intent | None:
        with kept(call):
            return intent.identity(forward(weighted, call), call.tensors)

    @functools.cached_property
    def own_intent(self) -> Intent | None:
        """Why the backward is not the derivative on purpose, if the subject itself gives a sign of it.

        There is no need for one where a relaxation is declared: the backward is held against that one's derivative.
        """
        if self.subject.relaxation is not None:
            return None
        declared, shown = intent.declared(self.subject), intent.identity(self.base_run, self.base.tensors)
        if shown is not None and self.with_weights is not None:
            shown = self._identity_for_other_weights(*self.with_weights)
        if shown is not None and declared is None and self.backward_works and self.nonlinearity is not None:
            shown = None  # scaling, reversing or blocking a gradient is linear in it
        if shown is None and declared is None and (self.draws or self.backward_draws):
            declared = intent.declared_random(self.subject)
        if shown is None and self.base_result is not None:
            shown = intent.flat(self.base_result, self.subject.name)
            if declared is None and self.base_result.wrong and intent.rounds_inside(self.subject, self.base):
                shown = intent.ROUNDED
            if shown is None and self.base.wrt and len(self.staircase_inputs) == len(self.base.wrt):
                shown = intent.ROUNDED if intent.rounds_inside(self.subject, self.base) else intent.FLAT
        if declared is not None and shown is not None:
            return replace(declared, sign="declared")
        return declared or shown

    @functools.cached_property
    def staircase_inputs(self) -> frozenset[int]:
        """The inputs in which the forward is a staircase, among those with an inconclusive comparison."""
        compared = [] if self.base_result is None else self.base_result.comparisons
        unknown = {c.input_index for c in compared if c.status == "inconclusive"}
        return intent.staircase_inputs(self.subject, self.base) & unknown if unknown else frozenset()

    def stop_gradient(self) -> Intent | None:
        """Return an intent if a callable detaches, or uses under no_grad, each input whose gradient is wrong."""
        if self.subject.kind != "callable" or self.subject.is_made:
            return None  # a made op refuses or declares every cut
        if self.base_result is None or not self.base_result.wrong:
            return None
        with watch_cuts() as watch:
            run = forward(self.subject, self.base)
        found = [list(culprits(watch.cuts, run.inputs[c.input_index])) for c in self.base_result.wrong]
        cut = deliberate_stop(found)
        return None if cut is None else Intent("cut", f"it leaves the graph by {cut.where}")
