"""The outcome of one subject: its findings, combined from the messages of its processes and from how they ended."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pullback.check.case import IF_IT_FITS
from pullback.check.rules import allow_keys, rule_named, rule_of
from pullback.check.run_audit import static_findings, unaudited
from pullback.check.runner.process import Death
from pullback.check.subject import Options, Subject
from pullback.check.trial import Incident
from pullback.report.model import (
    SEVERITIES,
    Evidence,
    Finding,
    Measurements,
    Severity,
    SubjectResult,
    Verdict,
    finding_from_dict,
    status_of,
    subject_from_dict,
    to_plain,
)
from pullback.report.report import Report


@dataclass(frozen=True, slots=True)
class AuditStep:
    """Current step of an audit: `rule` on `what`, reproducible by `reproduce`."""

    rule: str = ""
    what: str = ""
    reproduce: str = ""

    @property
    def is_call(self) -> bool:
        """Whether it is a valid call: neither a guess nor a variant of the example."""
        variant = re.search(r"\[([^\]]+)\]$", self.what)
        return bool(self.rule) and (variant is None or variant[1] in ("given", "example"))

    @property
    def is_doubtful(self) -> bool:
        """Whether it is a variant that may be no valid input."""
        return self.what.endswith(f"{IF_IT_FITS}]")

    def __str__(self) -> str:
        if not self.what:
            return "before the first rule"
        return f"on {self.what}" if self.rule else f"while {self.what}"


def process_finding(subject: Subject, death: Death, step: AuditStep, seconds: float) -> Finding:
    """Return the finding about a subject whose process did not finish.

    Args:
        subject: the audited function.
        death: how the process ended.
        step: its current step.
        seconds: the limit that it exceeded, if it was killed for one.
    """
    finding = Finding(
        subject=subject.name,
        rule="",
        name="",
        severity="error",
        verdict="wrong",
        message="",
        location=subject.location,
        evidence=_evidence(death, step),
        reproduce=step.reproduce,
    )
    if death.cause == "late":
        return _unfinished(finding, step, seconds)
    if death.cause == "silent":
        found = _never_returns(finding, step, seconds) if step.is_call else _no_call(finding, step, seconds)
    elif death.cause == "exit":
        found = _exits(finding, step, death.status)
    elif death.status == signal.SIGKILL or "std::bad_alloc" in death.output:
        found = _exhausts_memory(finding, step)
    else:
        found = _crashes(finding, step, death.status)
        if step.is_doubtful:
            found = _excused(found, "warning", "inconclusive", "It may be an invalid call.")
    rule = rule_named(step.rule)
    if rule is None:
        return found
    if death.cause == "silent" and rule.compiles:
        return _in_the_compiler(found)
    if rule.transforms:
        return _excused(found, "warning", "unsupported", f"{rule.id} transforms it, which it may not support.")
    return _on_extremes(found) if rule.is_of_range else found


def _of(finding: Finding, incident: Incident, **changes: Any) -> Finding:
    rule = rule_of(incident)
    return replace(finding, rule=rule.id, name=rule.name, **changes)


def _on_extremes(found: Finding) -> Finding:
    """A warning about inputs beyond any use: a correct iteration need not end at 1e38."""
    why = "Rules about numerics run it on numbers of every magnitude, not on the example alone."
    return _excused(found, "warning", "unstable", why)


def _in_the_compiler(found: Finding) -> Finding:
    """An info about the time that PyTorch's compiler took."""
    return _excused(found, "info", "inconclusive", "That was in PyTorch's compiler, which may be slow.")


def _excused(found: Finding, severity: Severity, verdict: Verdict, why: str) -> Finding:
    """A milder finding, with the reason and without a script."""
    return replace(found, severity=severity, verdict=verdict, message=f"{found.message} {why}", reproduce="")


def _crashes(finding: Finding, step: AuditStep, number: int) -> Finding:
    return _of(
        finding,
        "crash",
        message=f"The process was killed by {signal_name(number)} {step}.",
        hint="Run the reproduction under `python -X faulthandler`. Native code that dies so mostly reads or "
        "writes past a tensor: check shape, dtype, device and contiguity before taking a pointer.",
    )


def _never_returns(finding: Finding, step: AuditStep, seconds: float) -> Finding:
    return _of(
        finding,
        "hang",
        message=f"Nothing came back for {seconds:g} s {step}; the process was killed.",
        hint="If the function is only slow, raise `--budget`, or give smaller inputs with `--inputs`.",
    )


def _no_call(finding: Finding, step: AuditStep, seconds: float) -> Finding:
    return replace(
        _never_returns(finding, step, seconds),
        severity="warning",
        verdict="inconclusive",
        message=f"Nothing came back for {seconds:g} s {step}; the process was killed. It may be an invalid call.",
    )


def _unfinished(finding: Finding, step: AuditStep, seconds: float) -> Finding:
    return _of(
        finding,
        "hang",
        severity="warning",
        verdict="unaudited",
        message=f"The audit was stopped after {seconds:g} s {step}; the rules to come did not run.",
        hint="If the function is only slow, raise `--budget`, or give smaller inputs with `--inputs`.",
    )


def _exits(finding: Finding, step: AuditStep, status: int) -> Finding:
    return _of(
        finding,
        "exit",
        message=f"The process was ended with exit status {status} {step}.",
        hint="Raise an exception: only the program itself should decide to exit.",
    )


def _exhausts_memory(finding: Finding, step: AuditStep) -> Finding:
    return _of(
        finding,
        "memory",
        message=f"The process was killed {step}, as the system does when memory runs out.",
        hint="Look for a temporary much larger than the inputs, or one kept from call to call.",
    )


def _evidence(death: Death, step: AuditStep) -> Evidence | None:
    if not death.output:
        return None
    where = f"end of what it printed, in {step.rule}" if step.rule else "end of what it printed"
    return Evidence(got=death.output, where=where)


def signal_name(number: int) -> str:
    """Return name and meaning of a signal, e.g. "SIGSEGV (Segmentation fault)"."""
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"
    described = signal.strsignal(number)
    return f"{name} ({described})" if described else name


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one subject."""

    result: SubjectResult
    findings: tuple[Finding, ...]
    allowed: int

    def with_finding(self, old: Finding, new: Finding) -> Outcome:
        """Return the outcome with one finding in another's place."""
        findings = _worst_first(new if finding is old else finding for finding in self.findings)
        return replace(self, findings=findings, result=replace(self.result, status=status_of(findings)))


def _worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings by severity, then by rule; those of a kernel's memory come before those of other contexts."""
    return tuple(sorted(findings, key=lambda f: (-SEVERITIES.index(f.severity), f.rule[:3] in _OF_CONTEXTS, f.rule)))


_OF_CONTEXTS = ("PB4", "PB5", "PB6", "PB7", "PB8")


def make_outcome(
    subject: Subject,
    findings: Iterable[Finding],
    cases: int = 0,
    seconds: float = 0.0,
    allowed: int = 0,
    measured: Measurements | None = None,
) -> Outcome:
    """The outcome without duplicates and findings that an allow comment silences, the most severe first.

    Args:
        subject: the audited function.
        findings: all of them.
        cases: number of inputs tried.
        seconds: duration.
        allowed: number of findings that a comment has silenced already.
        measured: measurements besides.
    """
    unique = {(finding.rule, finding.message): finding for finding in findings}.values()
    loud = _worst_first(f for f in unique if subject.source is None or not subject.source.allows(*allow_keys(f)))
    result = SubjectResult(
        subject.name, subject.location, status_of(loud), cases, seconds, measured or Measurements(), subject.absent
    )
    return Outcome(result, loud, allowed + len(unique) - len(loud))


def static_outcome(subject: Subject, options: Options, why: str) -> Outcome:
    """Return the outcome of a subject that cannot be run: its static findings."""
    return make_outcome(subject, [unaudited(subject, why), *static_findings(subject, options)])


def newest(attempts: Sequence[Sequence[Finding]]) -> list[Finding]:
    """Findings of the last attempt, and those of earlier ones by rules that report nothing later."""
    kept: list[Finding] = []
    for findings in reversed(attempts):
        named = {finding.rule for finding in kept}
        kept += [finding for finding in findings if finding.rule not in named]
    return kept


def report_of(outcomes: Sequence[Outcome]) -> Report:
    """Return the report on all subjects."""
    return Report(
        subjects=tuple(outcome.result for outcome in outcomes),
        findings=tuple(finding for outcome in outcomes for finding in outcome.findings),
        allowed=sum(outcome.allowed for outcome in outcomes),
    )


def outcome_to_dict(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as plain data that JSON can hold."""
    return {
        "result": to_plain(outcome.result),
        "findings": [to_plain(finding) for finding in outcome.findings],
        "allowed": outcome.allowed,
    }


def outcome_from_dict(data: dict[str, Any]) -> Outcome:
    """Rebuild an outcome from `outcome_to_dict`'s data."""
    findings = tuple(finding_from_dict(finding) for finding in data["findings"])
    return Outcome(subject_from_dict(data["result"]), findings, data["allowed"])
