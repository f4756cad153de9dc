"""Data model of an audit's result: a `Report` of `SubjectResult`s and `Finding`s."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Literal

from pullback.report.measured import Measured

Severity = Literal["error", "warning", "info"]
Verdict = Literal["ok", "wrong", "unstable", "unsupported", "inconclusive", "intended", "unaudited"]

Status = Literal[Verdict, "warned", "known"]
"""Status of a subject: a verdict, or "warned" if only warnings report a fault."""

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")
"""Least severe first."""

_WORST_FIRST: tuple[Verdict, ...] = (
    "wrong",
    "unstable",
    "unaudited",
    "inconclusive",
    "intended",
    "unsupported",
    "ok",
)


@dataclass(frozen=True, slots=True)
class Location:
    """Source location of a subject or a finding; `file` is in the form that the user would write."""

    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        if self.file is None:
            return "<unknown>"
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The numbers behind a finding; a field that does not apply is `None`.

    Attributes:
        expected: the value that the oracle gives at `worst_index`.
        got: the value that the subject gives there.
        error_bar: absolute uncertainty of `expected`, truncation plus measured noise; `None` if exact.
        worst_index: position of the worst element in the tensor named by `where`.
        where: what `worst_index` indexes, e.g. "gradient of input 0 (x)".
        dtype: dtype of that tensor.
        failing: how many of `directions` disagree.
        directions: how many directions or elements were compared.
        unit: of `expected` and `got`, "bytes"; `None` for plain numbers.
    """

    expected: float | str | None = None
    got: float | str | None = None
    error_bar: float | None = None
    worst_index: tuple[int, ...] | None = None
    where: str | None = None
    dtype: str | None = None
    failing: int | None = None
    directions: int | None = None
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One property of one subject that does not hold, with its evidence and a reproduction.

    Attributes:
        subject: name of the audited function.
        rule: stable id, e.g. "PB101".
        name: name of the rule, what `# pullback: allow[NAME] reason` takes.
        severity: "error", "warning" or "info".
        verdict: "wrong", "unstable" (not finite at a special point, or wrong far outside the ordinary range),
            "unsupported" (it raises), "inconclusive", "intended" (no derivative, on purpose) or "unaudited".
        message: what is wrong, with the numbers, in one or two sentences.
        location: file and line of the subject or of the offending line.
        evidence: the numbers, where there are any.
        reproduce: runnable code with the smallest failing input; empty if there is no input to show.
        hint: what to do.
        context: the use of the function that its rule is about, e.g. "vmap"; empty for the gradient itself.
        of_pytorch: whether its rule is about an effect of PyTorch on every custom function, which no author can mend.
        alias: former id, still accepted, of what a static half of a rule found; empty for others.
    """

    subject: str
    rule: str
    name: str
    severity: Severity
    verdict: Verdict
    message: str
    location: Location = field(default_factory=Location)
    evidence: Evidence | None = None
    reproduce: str = ""
    hint: str = ""
    context: str = ""
    of_pytorch: bool = False
    alias: str = ""


@dataclass(frozen=True, slots=True)
class SubjectResult:
    """Result of the audit of one subject: `status` sums up its findings, `measured` is for plots.

    `absent` is the import of its module that failed.
    """

    name: str
    location: Location
    status: Status
    cases: int
    seconds: float
    measured: Measured = field(default_factory=Measured)
    absent: tuple[str, ...] = ()


def status_of(findings: Sequence[Finding]) -> Status:
    """Return the status of a subject.

    It is the verdict of its errors, or "unaudited"; else "intended" for a gradient that is no derivative on purpose;
    else the verdict of its warnings, with "warned" in place of "wrong". An info does not change the status of a correct
    function, unless nothing could be decided.
    """
    audited = all(f.verdict != "unaudited" for f in findings)
    severest = "error" if any(f.severity == "error" for f in findings) else "warning"
    verdicts = {f.verdict for f in findings if f.severity == severest}
    told = {f.verdict for f in findings} & {"intended", "inconclusive"}
    if not audited and severest != "error":
        return "unaudited"
    if severest != "error" and "intended" in told:
        return "intended"
    counted = verdicts | (told - {"intended"})
    worst = next(verdict for verdict in _WORST_FIRST if verdict in counted or verdict == "ok")
    return "warned" if worst == "wrong" and severest == "warning" else worst


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of an audit.

    Attributes:
        subjects: every subject, in source order.
        findings: every finding, the most severe first within a subject.
        allowed: how many findings an inline `# pullback: allow[NAME] reason` silenced.
        known: how many a baseline has.
    """

    subjects: tuple[SubjectResult, ...]
    findings: tuple[Finding, ...]
    allowed: int = 0
    known: int = 0

    @property
    def ok(self) -> bool:
        """True if every subject was audited and no finding is an error."""
        return not any(f.severity == "error" or f.verdict == "unaudited" for f in self.findings)

    @property
    def summary(self) -> dict[str, int]:
        """Counts of subjects, of findings by severity, and of subjects that could not be audited."""
        by_severity = Counter(finding.severity for finding in self.findings)
        return {
            "subjects": len(self.subjects),
            "errors": by_severity["error"],
            "warnings": by_severity["warning"],
            "infos": by_severity["info"],
            "unaudited": sum(subject.status == "unaudited" for subject in self.subjects),
            "allowed": self.allowed,
            "known": self.known,
        }

    def by_subject(self) -> list[tuple[SubjectResult, list[Finding]]]:
        """Return each subject with the findings about it."""
        by_place: dict[tuple[str, str | None], list[Finding]] = {}
        for finding in self.findings:
            by_place.setdefault((finding.subject, finding.location.file), []).append(finding)
        # Two of one name in one file share their findings: the first has them.
        return [(subject, by_place.pop((subject.name, subject.location.file), [])) for subject in self.subjects]

    def at_least(self, severity: Severity) -> tuple[Finding, ...]:
        """Return the findings whose severity is `severity` or worse."""
        floor = SEVERITIES.index(severity)
        return tuple(f for f in self.findings if SEVERITIES.index(f.severity) >= floor)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, the form that `to_json` writes."""
        from pullback.report import plain

        return {
            "version": versions(),
            "subjects": [plain.subject_to_dict(subject) for subject in self.subjects],
            "findings": [plain.finding_to_dict(finding) for finding in self.findings],
            "summary": self.summary,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Report:
        """Rebuild a report from the result of `to_dict`, or from parsed JSON of `to_json`."""
        from pullback.report import plain

        return cls(
            tuple(map(plain.subject_from_dict, data["subjects"])),
            tuple(map(plain.finding_from_dict, data["findings"])),
            data["summary"]["allowed"],
            data["summary"]["known"],
        )

    def to_json(self, indent: int | None = 2) -> str:
        """Return the report as one strict JSON object; NaN and infinities are written as strings."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def _repr_html_(self) -> str:
        from pullback.report.html import to_frame

        return to_frame(self)

    def __str__(self) -> str:
        from pullback.report.terminal import render_text

        return render_text(self)

    def __repr__(self) -> str:
        s = self.summary
        return (
            f"<pullback.Report {'ok' if self.ok else 'not ok'}: {s['subjects']} subjects, {s['errors']} errors, "
            f"{s['warnings']} warnings, {s['infos']} infos, {s['unaudited']} unaudited>"
        )


def merge(reports: Sequence[Report]) -> Report:
    """Return one report with the subjects and findings of several, in order."""
    return Report(
        subjects=tuple(subject for report in reports for subject in report.subjects),
        findings=tuple(finding for report in reports for finding in report.findings),
        allowed=sum(report.allowed for report in reports),
        known=sum(report.known for report in reports),
    )


def versions() -> dict[str, str]:
    """Return the versions that a report depends on."""
    return {"pullback": version("pullback"), "torch": version("torch"), "python": platform.python_version()}
