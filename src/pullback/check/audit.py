"""The audit of one subject: a working example, its variants, what is known about them, and the rules.

Runs inside a process of its own (`runner.py`). Rules ask this object for facts, which are worked out once.
"""

from __future__ import annotations

import ast
import functools
import re
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from pullback.check.cases import variants
from pullback.check.cases.case import Case, make_case
from pullback.check.cases.probe import Probe, parameters, positional_names, probe
from pullback.check.cases.repro import script
from pullback.check.cases.shrink import shrink
from pullback.check.derivative import intent
from pullback.check.derivative.first_order import Comparison, FirstOrder, first_order
from pullback.check.derivative.intent import Intent
from pullback.check.derivative.second_order import SecondOrder, second_order
from pullback.check.derivative.trial import Raised, Run, forward, reseed, take_incidents
from pullback.check.rules import Rule, all_rules, rule_named
from pullback.check.runner.events import AuditEnd, Events
from pullback.check.subject import Inputs, Options, Subject
from pullback.report.model import Evidence, Finding, Location, Severity, Verdict

_CONTRACT_SHARE = 0.6
"""Of the budget, for the variants of the contract rules; the rest is for composition."""
_SHRINK_SECONDS = 0.5


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

    def running(self, rules: Sequence[str]) -> list[str]:
        """Return those of `rules` that the options select: what they report needs no second finding."""
        chosen = {rule.id for rule in selected(self.options)}
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

    def compare(
        self, case: Case, directions: int = 1, numeric: Case | None = None, settled: Collection[int] = ()
    ) -> FirstOrder | None:
        """Compare gradient and numeric derivative on a case; `None` if it is no valid input."""
        self.events.beat()
        self.cases += 1
        return first_order(self.subject, case, self.generator, directions, numeric, settled)

    @functools.cached_property
    def draws(self) -> bool:
        """Whether the forward draws random numbers; they fall in memory order, so strides change its value."""
        forward(self.subject, self.base)
        drawn = torch.default_generator.get_state()
        reseed()
        return not torch.equal(drawn, torch.default_generator.get_state())

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
        """What double backward does on the working example; `None` where the backward itself fails."""
        return second_order(self) if self.backward_works else None

    def results(self) -> list[FirstOrder]:
        """Return the comparison on every variant, within the contract's share of the budget.

        An input whose gradient is wrong on one ordinary case is not compared on those that follow.
        """
        if not self._results:
            self._results = list(self._compare_all())
        return self._results

    def _compare_all(self) -> Iterator[FirstOrder]:
        settled: set[int] = set()
        if self.base_result is not None:
            settled.update(c.order for c in self.base_result.wrong)
            yield self.base_result
        for case, numeric in self._variants():
            if not self.has_time(_CONTRACT_SHARE):
                return
            if case.describe() in self.skip:
                continue
            self.events.step("PB1", case.describe(), script(self.subject, case))
            result = self.compare(case, numeric=numeric, settled=settled)
            if result is not None:
                if not case.extreme and not case.doubtful:
                    settled.update(c.order for c in result.wrong)
                yield result

    def _variants(self) -> Iterator[tuple[Case, Case | None]]:
        """Yield every variant with the case that its numeric derivative is taken on."""
        base = self.base
        for given in self.given:
            yield given, None
        for case in self._without_optional():
            yield case, None
        for make in (variants.values, variants.shared, variants.sizes):
            for case in make(base):
                yield case, None
        for case in () if self.draws else variants.layouts(base):
            yield case, variants.contiguous(case)
        for case in variants.dtypes(base):
            widened = variants.as_dtypes_of(case, base)
            yield case, widened if self.is_valid(widened) and not self.draws else None
        for case in variants.extremes(base):
            yield case, None

    def _without_optional(self) -> Iterator[Case]:
        """Yield the example with None for each tensor argument that may be None, by its default or the source."""
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
        """Why the backward is not the derivative on purpose, if there is a sign of it."""
        found = intent.declared(self.subject) or intent.identity(self.base_run)
        if found is None and self.base_result is not None:
            found = intent.flat(self.base_result)
        return found

    def intent_of(self, result: FirstOrder) -> Intent | None:
        """Why a disagreement is meant, if there is a sign of it."""
        return self.intent or intent.bound(result, self.subject.name)

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
            reproduce=script(self.subject, case, tail, mask) if case is not None else "",
            hint=hint,
        )

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


def audit(
    subject: Subject,
    options: Options,
    inputs: Inputs | None,
    events: Events,
    skip: frozenset[str] = frozenset(),
) -> AuditEnd:
    """Run every selected rule on `subject` and report what they find to `events`.

    Args:
        subject: what to audit; one without a target gets its static rules and a warning.
        options: which rules, the seed and the budget.
        inputs: examples of a call; the first that works is varied. By default one is looked for.
        events: receives steps and findings.
        skip: ids of rules, and descriptions of cases, that brought a process down: they are left out.
    """
    warnings.simplefilter("ignore")
    sink = _Sink(subject, events)
    chosen = [rule for rule in selected(options) if rule.id not in skip and subject.kind in rule.kinds]
    for finding in static_findings(subject, options):
        sink(finding)
    if subject.target is None:
        sink(unaudited(subject, subject.why_unaudited))
        return AuditEnd(0, sink.allowed)
    events.step("", "looking for a working example", "")
    given = [make_case(args, kwargs, positional_names(subject), "given") for args, kwargs in inputs or ()]
    state, why = _prepare(subject, options, given, events, skip)
    for finding in _incidents(subject):
        sink(finding)
    if state is None:
        sink(unaudited(subject, why))
        return AuditEnd(0, sink.allowed)
    left_out = _run_rules(state, chosen, sink)
    if left_out:
        sink(_over_budget(state, left_out))
    return AuditEnd(state.cases, sink.allowed)


def selected(options: Options) -> list[Rule]:
    """Return the rules that `options` ask for, contract before composition."""
    return [
        rule
        for rule in all_rules()
        if (not options.select or rule.id.startswith(options.select))
        and not rule.id.startswith(options.ignore or ("-",))
    ]


def static_findings(subject: Subject, options: Options) -> list[Finding]:
    """Return what the source alone shows. Runs none of the audited code."""
    if subject.source is None:
        return []
    return [
        Finding(
            subject.name, rule.id, rule.name, "error", "wrong", match.message,
            Location(subject.location.file, match.line), hint=match.hint,
        )
        for rule in selected(options)
        if rule.static is not None
        for match in rule.static(subject.source)
    ]  # fmt: skip


def unaudited(subject: Subject, why: str) -> Finding:
    """Return the warning that a subject could not be run, with why and what to do."""
    return Finding(
        subject=subject.name,
        rule="PB001",
        name="unaudited",
        severity="warning",
        verdict="unaudited",
        message=f"not audited: {why}",
        location=subject.location,
        hint="give example inputs: `--inputs FILE:function`, or pullback.check(fn, *inputs) from Python",
    )


class _Sink:
    """Passes findings on, less those that an allow comment silences and those already told."""

    def __init__(self, subject: Subject, events: Events) -> None:
        self.subject = subject
        self.events = events
        self.allowed = 0
        self.seen: set[tuple[Any, ...]] = set()

    def __call__(self, finding: Finding) -> None:
        key = (finding.rule, finding.verdict, finding.message)
        if key in self.seen:
            return
        self.seen.add(key)
        if self.subject.source is not None and finding.name in self.subject.source.allow:
            self.allowed += 1
            return
        self.events.finding(finding)


def _prepare(
    subject: Subject, options: Options, given: list[Case], events: Events, skip: frozenset[str]
) -> tuple[Audit | None, str]:
    """Find the working example; return the audit's state, or why there is none."""
    generator = torch.Generator().manual_seed(options.seed)
    if not given:
        found = probe(subject, generator, events)
        if found.case is None:
            return None, _why_no_example(found)
        return Audit(subject, options, _settle(subject, found.case), [], events, skip, guessed=True), ""
    problems = []
    working = []
    for case in given:
        try:
            if not forward(subject, _settle(subject, case)).outputs:
                problems.append("the forward returned no tensor")
            elif not case.wrt:
                problems.append("no argument is a floating or complex tensor")
            else:
                working.append(_settle(subject, case))
        except Raised as error:
            problems.append(str(error))
    if not working:
        return None, f"the given inputs do not work: {problems[0]}" if problems else "no inputs were given"
    base = variants.widened(working[0])
    if not Audit(subject, options, base, [], events).is_valid(base):
        base = working[0]
    widened = any(a.dtype != b.dtype for a, b in zip(base.tensors, working[0].tensors, strict=True))
    rest = working if widened else working[1:]
    return Audit(subject, options, base, rest, events, skip), ""


def _settle(subject: Subject, case: Case) -> Case:
    """Return the case with inputs that are no leaves, if the function changes them in place."""
    try:
        forward(subject, case)
    except Raised as error:
        if "leaf" in str(error.error) and "in-place" in str(error.error):
            return replace(case, non_leaf=True)
    return case


def _why_no_example(found: Probe) -> str:
    tried = f"{found.trials} guessed calls, none worked"
    return f"{tried}; most often {'; '.join(found.reasons)}" if found.reasons else tried


def _run_rules(state: Audit, chosen: Sequence[Rule], sink: _Sink) -> list[str]:
    """Run the rules; return the ids of those that the budget left no time for."""
    left_out = []
    for rule in chosen:
        if rule.runtime is None:
            continue
        if rule.family != "PB1" and not state.has_time():
            left_out.append(rule.id)
            continue
        state.events.step(rule.id, state.base.describe(), script(state.subject, state.base))
        try:
            for finding in rule.runtime(state):
                sink(finding)
        except Raised as error:
            if state.backward_works:  # else the rules about failing backwards have said it
                sink(_undecided(state, rule, str(error)))
        except Exception as error:  # a fault of ours must not end the audit, nor pass for a clean one
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{where.filename.rsplit('/', 1)[-1]}:{where.lineno}"
            sink(_undecided(state, rule, f"Pullback failed ({place}): {type(error).__name__}: {error}"))
        for finding in _incidents(state.subject):
            sink(finding)
    return left_out


def _undecided(state: Audit, rule: Rule, why: str) -> Finding:
    return state.finding(rule.id, "warning", "inconclusive", f"could not be decided: {why}", case=state.base)


def _over_budget(state: Audit, left_out: Sequence[str]) -> Finding:
    return state.finding(
        "PB006",
        "info",
        "inconclusive",
        f"the budget of {state.options.budget:g} s was spent before {', '.join(left_out)} could run",
        hint="raise --budget",
    )


def _incidents(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each exit or exhausted memory that the audited code tried in this process."""
    for rule, message in take_incidents():
        found = rule_named(rule)
        yield Finding(
            subject.name, rule, found.name if found else rule, "error", "wrong", message, subject.location,
            hint="a function must return or raise an ordinary error",
        )  # fmt: skip
