"""What the rules see of one subject: its working example, the variants, and facts worked out once."""

from __future__ import annotations

import ast
import functools
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import torch

from pullback.check.case import Case
from pullback.check.cases import variants
from pullback.check.cases.iterations import more_iterations
from pullback.check.cases.repro import bind_outs, script
from pullback.check.cases.shrink import shrink
from pullback.check.cases.signature import parameters
from pullback.check.derivative import intent
from pullback.check.derivative.agreement import Difference, difference
from pullback.check.derivative.compare_input import MAX_ELEMENTS, Comparison
from pullback.check.derivative.first_order import FirstOrder, first_order
from pullback.check.derivative.intent import Intent
from pullback.check.derivative.linearity import nonlinearity
from pullback.check.derivative.second_order import SecondOrder, second_order
from pullback.check.derivative.unwritten import Unwritten, unwritten
from pullback.check.events import Events
from pullback.check.rules import rule_named, selected
from pullback.check.subject import Options, Subject
from pullback.check.trial import SEED, Raised, Run, forward, reseed, standard_cotangents, vjp
from pullback.report.model import Evidence, Finding, Location, Severity, Verdict

_CONTRACT_SHARE = 0.6
"""Of the budget, for the variants of the contract rules; the rest is for composition."""
_SHRINK_SECONDS = 0.5
_SLOW = 2e-3
"""Seconds for a forward, from which on fewer elements are compared singly (82 forwards each)."""
_FEW_ELEMENTS = 8
_FEWEST_ELEMENTS = 3


class Audit:
    """What the rules see of one subject.

    Attributes:
        subject: what is audited.
        options: how.
        base: the working example, in float64 where the forward takes it.
        given: further examples that were given.
        generator: of every random choice.
        skip: ids of rules and descriptions of cases that are left out.
        guessed: the example was guessed, so that a variant may be no valid input.
    """

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
        self.options = options
        self.base = base
        self.given = given
        self.events = events
        self.generator = torch.Generator().manual_seed(options.seed)
        self.started = time.monotonic()
        self.cases = 0
        self._results: list[FirstOrder] = []

    def on(self, base: Case) -> Audit:
        """Return an audit of the same subject with another example."""
        again = Audit(self.subject, self.options, base, [], self.events, self.skip, self.guessed)
        again.__dict__["intent"] = self.intent  # of generic values; a small example may look like an identity
        return again

    def running(self, rules: Sequence[str]) -> list[str]:
        """Return those of `rules` that are run on this subject: what they report needs no second finding."""
        chosen = {rule.id for rule in selected(self.options) if self.subject.kind in rule.kinds}
        return [rule for rule in rules if rule in chosen]

    def elapsed(self) -> float:
        """Seconds since the audit of this subject began."""
        return time.monotonic() - self.started

    def has_time(self, share: float = 1.0) -> bool:
        """Whether less than `share` of the budget is spent."""
        return self.elapsed() < share * self.options.budget

    @functools.cached_property
    def names(self) -> list[str]:
        """Names of the differentiated inputs."""
        return [self.base.names[p] for p in self.base.wrt]

    @functools.cached_property
    def base_run(self) -> Run:
        """The forward of the working example. Its graph may be used up."""
        return forward(self.subject, self.base)

    @functools.cached_property
    def unwritten(self) -> Unwritten | None:
        """Where forward or backward of the working example return memory that was never written."""
        what = "new memory filled with NaN"
        if what in self.skip:
            return None
        self.events.step("PB1", what, script(self.subject, self.base))
        return unwritten(self.subject, self.base)

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
        settled: Collection[int] = (),
        unit: bool = False,
        elements: int = MAX_ELEMENTS,
    ) -> FirstOrder | None:
        """Compare gradient and numeric derivative on a case; `None` if it is no valid input.

        The forward is sampled on `numeric`; by default on the same values in the dtypes of the example.
        """
        self.events.beat()
        numeric = numeric or self._widened(case)
        self.cases += 1
        return first_order(
            self.subject, case, self.generator, directions, numeric, settled, unit, min(elements, self.elements)
        )

    def _widened(self, case: Case) -> Case | None:
        """Return the case in the dtypes of the example, where these differ and the forward takes them."""
        widened = variants.as_dtypes_of(case, self.base)
        same = all(a.dtype == b.dtype for a, b in zip(case.tensors, widened.tensors, strict=True))
        return None if same or self.draws or not self.is_valid(widened) else widened

    @functools.cached_property
    def elements(self) -> int:
        """How many elements of an input to compare singly: few if a forward takes milliseconds."""
        seconds = min(self._processor_time() for _ in range(3))
        return MAX_ELEMENTS if seconds < _SLOW else _FEW_ELEMENTS if seconds < 10 * _SLOW else _FEWEST_ELEMENTS

    def _processor_time(self) -> float:
        """Seconds of work for one forward. Not of the clock, which counts what other processes do as well."""
        started = time.process_time()
        forward(self.subject, self.base)
        return time.process_time() - started

    @functools.cached_property
    def draws(self) -> bool:
        """Whether the forward draws random numbers; they fall in memory order, so strides change its value."""
        forward(self.subject, self.base)
        drawn = torch.default_generator.get_state()
        reseed()
        return not torch.equal(drawn, torch.default_generator.get_state())

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
    def nonlinearity(self) -> tuple[str, Difference] | None:
        """The law of linearity in the cotangent that the backward breaks, and where; `None` if it keeps all."""
        return nonlinearity(self.subject, self.base, self.base_run.roots, self.events.beat)

    @functools.cached_property
    def backward_works(self) -> bool:
        """Whether forward and backward of the working example run; where not, some rule says why."""
        return self.base_result is not None and self.base_result.error is None

    @functools.cached_property
    def base_result(self) -> FirstOrder | None:
        """The comparison on the working example, three directions for each input."""
        return self.compare(self.base, directions=3)

    @functools.cached_property
    def second(self) -> SecondOrder | None:
        """What double backward does on the working example; `None` where there is no backward, or it fails."""
        if not self.backward_works or not self.base_run.roots:
            return None
        found = second_order(self)
        longer = more_iterations(self.base) if found.status == "wrong" else None
        if (
            longer is not None
            and self.is_valid(longer)
            and second_order(self.on(longer)).status in ("ok", "inconclusive")
        ):
            found = replace(found, status="inconclusive", unconverged=True)
        return found

    def results(self) -> list[FirstOrder]:
        """Return the comparison on every variant, within the contract's share of the budget.

        An input whose gradient is wrong on one ordinary case is not compared on those that follow.
        """
        if not self._results:
            self._results = list(self._compare_all())
        return self._results

    def _compare_all(self) -> Iterator[FirstOrder]:
        settled: set[int] = set()
        doubtful: set[int] = set()  # wrong on a case that may be no valid input: settles only others of that sort
        if self.base_result is not None:
            settled.update(c.order for c in self.base_result.wrong)
            yield self.base_result
        for case, numeric in self._variants():
            if not self.has_time(_CONTRACT_SHARE):
                return
            if case.describe() in self.skip:
                continue
            self.events.step("PB1", case.describe(), script(self.subject, case))
            result = self.compare(case, numeric=numeric, settled=settled | doubtful if case.doubtful else settled)
            if result is not None:
                if not case.extreme:
                    (doubtful if case.doubtful else settled).update(c.order for c in result.wrong)
                yield result

    def _variants(self) -> Iterator[tuple[Case, Case | None]]:
        """Yield every variant with the case that its numeric derivative is taken on."""
        base = self.base
        for given in self.given:
            yield given, None
        for case in self.without_optional():
            yield case, None
        for make in (variants.values, variants.shared, variants.sizes):
            for case in make(base):
                yield case, None
        for case in () if self.draws else variants.layouts(base):
            yield case, variants.contiguous(case)
        for case in variants.dtypes(base):
            yield case, None
        for case in variants.extremes(base):
            yield case, None

    def without_optional(self) -> Iterator[Case]:
        """Yield the example with None for each tensor argument that may be None, by default or by the source."""
        source = self.subject.source
        text = ast.unparse(source.node) if source else ""
        positions = self.base.top_level(len(self.base.arguments()[0]))
        for position, parameter in zip(positions, parameters(self.subject), strict=False):
            optional = parameter.default is None or re.search(rf"\b{parameter.name} is (not )?None\b", text)
            if optional and position in self.base.wrt:
                wrt = tuple(p for p in self.base.wrt if p != position)
                yield self.base.with_values({position: None}, f"{parameter.name}=None", wrt=wrt)

    def is_valid(self, case: Case) -> bool:
        """Whether the forward takes the case."""
        try:
            return bool(forward(self.subject, case).outputs)
        except Raised:
            return False

    @functools.cached_property
    def intent(self) -> Intent | None:
        """Why the backward is not the derivative on purpose, if there is a sign of it.

        There is no need for one where a relaxation is declared: the backward is held against that one's derivative.
        """
        if self.subject.relaxation is not None:
            return None
        found = intent.declared(self.subject) or intent.identity(self.base_run)
        if found is None and self.backward_draws:
            found = intent.declared_random(self.subject)
        if found is None and self.base_result is not None:
            found = intent.flat(self.base_result, self.subject.name)
            if self.base_result.wrong and intent.rounds_inside(self.subject, self.base):
                found = intent.ROUNDED
        return found

    @functools.cached_property
    def any_intent(self) -> Intent | None:
        """Why the backward is not the derivative on purpose, if that shows on any ordinary case."""
        found = (intent.bound(result, self.subject.name) for result in self.results() if not result.case.extreme)
        return self.intent or next((reason for reason in found if reason is not None), None)

    def intent_of(self, result: FirstOrder, comparison: Comparison) -> Intent | None:
        """Why a disagreement is meant, if there is a sign of it."""
        flat = intent.flat_in(comparison) if result is self.base_result else None
        return self.intent or flat or intent.bound(result, self.subject.name)

    def shrink(self, case: Case, fails: Callable[[Case], bool]) -> Case:
        """Return the smallest case found for which `fails` holds, within half a second."""
        end = time.monotonic() + _SHRINK_SECONDS

        def guarded_fails(candidate: Case) -> bool:
            self.events.beat()
            try:
                return fails(candidate)
            except Raised:
                return False

        return shrink(case, guarded_fails, lambda: time.monotonic() < end)

    def finding(
        self,
        rule: str,
        severity: Severity,
        verdict: Verdict,
        message: str,
        *,
        case: Case | None = None,
        evidence: Evidence | None = None,
        tail: Sequence[str] = (),
        mask: Sequence[bool] | None = None,
        hint: str = "",
        line: int | None = None,
    ) -> Finding:
        """Build a finding about this subject; `case` and `tail` make its reproduction."""
        location = self.subject.location
        found = rule_named(rule)
        return Finding(
            subject=self.subject.name,
            rule=rule,
            name=found.name if found else rule,
            severity=severity,
            verdict=verdict,
            message=message,
            location=Location(location.file, line) if line else location,
            evidence=evidence,
            reproduce=self._script(case, tail, mask) if case is not None else "",
            hint=hint,
        )

    def _script(self, case: Case, tail: Sequence[str], mask: Sequence[bool] | None) -> str:
        try:
            seed = SEED if self.draws or self.backward_draws else None
        except Raised:
            seed = None
        return script(self.subject, case, tail, mask, seed)

    def evidence(self, result: FirstOrder, comparison: Comparison) -> Evidence:
        """Return the numbers of one disagreement."""
        name = result.case.names[result.case.wrt[comparison.order]]
        return Evidence(
            expected=comparison.expected,
            got=comparison.got,
            error_bar=comparison.bar,
            worst_index=comparison.index,
            where=f"gradient of {name}",
            dtype=str(result.case.tensors[comparison.order].dtype).removeprefix("torch."),
            failing=comparison.failing,
            directions=comparison.compared,
        )
