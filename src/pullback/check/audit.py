"""The audit of one subject: a working example, its variants, what is known about them, and the rules.

Runs inside a process of its own (`runner.py`). Rules ask this object for facts, which are worked out once.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pullback.check import trial
from pullback.check.case import Case, make_case
from pullback.check.cases import variants
from pullback.check.cases.probe import Probe, positional_names, probe
from pullback.check.cases.repro import script
from pullback.check.events import AuditEnd, Events
from pullback.check.rules import Rule, rule_named, selected
from pullback.check.state import Audit
from pullback.check.subject import Inputs, Options, Subject
from pullback.check.trial import Raised, forward, take_incidents
from pullback.report.model import Finding, Location


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
    trial.set_heartbeat(events.beat)
    events.step("", "looking for a working example", "")
    names, nested = positional_names(subject), subject.kind != "function"
    given = [make_case(args, kwargs, names, "given", nested) for args, kwargs in inputs or ()]
    state, why = _prepare(subject, options, given, events, skip)
    for finding in _incidents(subject):
        sink(finding)
    if state is None:
        sink(unaudited(subject, why))
        return AuditEnd(0, sink.allowed)
    if state.guessed and state.base.label.endswith("matrices") and state.running(("PB101",)):
        sink(_only_in_domain(state))
    left_out = _run_rules(state, chosen, sink)
    if left_out:
        sink(_over_budget(state, left_out))
    return AuditEnd(state.cases, sink.allowed)


def static_findings(subject: Subject, options: Options) -> list[Finding]:
    """Return what the source alone shows. Runs none of the audited code."""
    if subject.source is None:
        return []
    return [
        Finding(
            subject.name, rule.id, rule.name, match.severity, "wrong", match.message,
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
        return _in_domain(Audit(subject, options, _settle(subject, found.case), [], events, skip, guessed=True)), ""
    problems = []
    working = []
    for case in given:
        devices = {v.device.type for v in case.values if isinstance(v, Tensor)} - {"cpu"}
        if devices:
            problems.append(f"they are on {', '.join(sorted(devices))}, and the audit runs on the CPU alone")
            continue
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


def _in_domain(guessed: Audit) -> Audit:
    """Return the audit on matrices of some structure, if only then the gradient is right.

    A guessed square matrix is arbitrary. A function of symmetric, positive definite or triangular matrices says
    nothing about others, and an accusation on one of those would be of our guess, not of the function.
    """
    if guessed.base_result is None or not guessed.base_result.wrong or guessed.intent is not None:
        return guessed
    for case in variants.structured(guessed.base):
        other = guessed.on(case)
        if other.base_result is not None and not other.base_result.wrong and not other.base_result.error:
            return other
    return guessed


def _only_in_domain(state: Audit) -> Finding:
    what = f"the gradient is right for {state.base.label}, and wrong for other square matrices"
    hint = "if others are meant too, look for a missing transpose; if not, say so in the docstring and give inputs"
    return state.finding("PB101", "warning", "inconclusive", what, case=state.base, hint=hint)


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
            for finding in _smallest(state, rule, list(rule.runtime(state))):
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


def _smallest(state: Audit, rule: Rule, found: list[Finding]) -> list[Finding]:
    """Return what the rule finds on the smallest example on which it finds as bad a fault."""
    worst = {f.severity for f in found}
    if rule.runtime is None or not rule.shrinks or not worst & {"error", "warning"}:
        return found
    severity = "error" if "error" in worst else "warning"

    def run(case: Case) -> list[Finding]:
        again = state.on(case)
        return list(rule.runtime(again)) if rule.runtime is not None and again.is_valid(case) else []

    def fails(case: Case) -> bool:
        return any(f.severity == severity for f in run(case))

    smallest = state.shrink(state.base, fails)
    return run(smallest) if smallest is not state.base else found


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
