"""Outcome of one subject, combined from the messages and ends of its processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pullback.check import audit
from pullback.check.rules import allow_keys
from pullback.check.subject import Options, Subject
from pullback.report.measured import Measured
from pullback.report.model import SEVERITIES, Finding, Report, SubjectResult, status_of
from pullback.report.plain import finding_from_dict, finding_to_dict, subject_from_dict, subject_to_dict


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
    return tuple(sorted(findings, key=lambda finding: (-SEVERITIES.index(finding.severity), finding.rule)))


def make_outcome(
    subject: Subject,
    findings: Iterable[Finding],
    cases: int = 0,
    seconds: float = 0.0,
    allowed: int = 0,
    measured: Measured | None = None,
) -> Outcome:
    """Return an outcome without repeated findings and those that an allow comment silences, the worst first.

    Args:
        subject: the audited function.
        findings: all of them.
        cases: number of inputs tried.
        seconds: duration.
        allowed: number of findings that a comment has silenced already.
        measured: measurements besides.
    """
    once = {(finding.rule, finding.message): finding for finding in findings}.values()
    loud = _worst_first(f for f in once if subject.source is None or not subject.source.allows(*allow_keys(f)))
    result = SubjectResult(
        subject.name, subject.location, status_of(loud), cases, seconds, measured or Measured(), subject.absent
    )
    return Outcome(result, loud, allowed + len(once) - len(loud))


def static_outcome(subject: Subject, options: Options, why: str) -> Outcome:
    """Return the outcome of a subject that cannot be run: its static findings."""
    return make_outcome(subject, [audit.unaudited(subject, why), *audit.static_findings(subject, options)])


def newest(attempts: Sequence[Sequence[Finding]]) -> list[Finding]:
    """Return the last attempt's findings, and of each earlier one those of rules that no later one reports."""
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
        "result": subject_to_dict(outcome.result),
        "findings": [finding_to_dict(finding) for finding in outcome.findings],
        "allowed": outcome.allowed,
    }


def outcome_from_dict(data: dict[str, Any]) -> Outcome:
    """Rebuild an outcome from `outcome_to_dict`'s data."""
    findings = tuple(finding_from_dict(finding) for finding in data["findings"])
    return Outcome(subject_from_dict(data["result"]), findings, data["allowed"])
