"""Data model of an audit's result: subjects, findings with their evidence, and measurements for plots.

All of it has a form in strict JSON. Results cross from the auditing process to the reporting one as JSON, never as a
pickle, since audited code ran in the former.
"""

from __future__ import annotations

import json
import math
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any, Literal, Self, cast

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

ContextState = Literal["ok", "unsupported", "intended", "inconclusive", "warning", "error", "not tried"]
Numbers = tuple[float | None, ...]


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
        unit: unit of `expected` and `got`, "bytes"; `None` for plain numbers.
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

    @property
    def place(self) -> tuple[str, str | None]:
        """The subject's name and file: functions of two files may have one name."""
        return self.subject, self.location.file


@dataclass(frozen=True, slots=True)
class ContextResult:
    """The result of a function in a context of differentiation, such as "func.vmap".

    Findings that an allow comment or a baseline silences count, too. A refusal is "unsupported".
    """

    name: str
    state: ContextState


@dataclass(frozen=True, slots=True)
class GradientCurve:
    """The gradient of an elementwise function along one input, and the numeric derivative of its forward.

    Attributes:
        by: the input that varies; the others keep their value in the example.
        at: its values.
        got: the gradient.
        low, high: range of the numeric derivative: ten error bars around it; at a kink, all between the one-sided ones.
    """

    by: str
    at: Numbers
    got: Numbers
    low: Numbers
    high: Numbers


@dataclass(frozen=True, slots=True)
class UlpErrors:
    """The largest error of an elementwise function of one input, in each part of the input's range.

    Attributes:
        of: "value" or "gradient of x".
        dtype: dtype of the computation.
        at: the point of the largest error in each part.
        ulp: that error; `None` where the computed value is a spurious NaN, infinity or 0.
        exact: whether the reference is the exact value; otherwise it is a float64 run of the same function.
    """

    of: str
    dtype: str
    at: Numbers
    ulp: Numbers
    exact: bool


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measurements of one function besides its findings: numbers of bounded size, which the report page plots.

    A number that is not finite, or unknown, is `None`. `guessed` says whether the audit guessed the inputs, and
    `interpreted` whether its Triton kernels were interpreted.
    """

    contexts: tuple[ContextResult, ...] = ()
    slopes: tuple[GradientCurve, ...] = ()
    errors: tuple[UlpErrors, ...] = ()
    guessed: bool = False
    interpreted: bool = False


@dataclass(frozen=True, slots=True)
class SubjectResult:
    """Result of the audit of one subject: `status` sums up its findings, `measured` is for plots.

    `absent` are the imports of its module that failed.
    """

    name: str
    location: Location
    status: Status
    cases: int
    seconds: float
    measured: Measurements = field(default_factory=Measurements)
    absent: tuple[str, ...] = ()


def status_of(findings: Sequence[Finding]) -> Status:
    """Return the status of a subject.

    It is the verdict of its errors, or "unaudited"; else "intended" for a gradient that deliberately deviates; else the
    verdict of its warnings, with "warned" in place of "wrong". An info does not change the status of a correct
    function, unless nothing could be decided.
    """
    audited = all(f.verdict != "unaudited" for f in findings)
    severest = "error" if any(f.severity == "error" for f in findings) else "warning"
    verdicts = {f.verdict for f in findings if f.severity == severest}
    notable = {f.verdict for f in findings} & {"intended", "inconclusive"}
    if not audited and severest != "error":
        return "unaudited"
    if severest != "error" and "intended" in notable:
        return "intended"
    counted = verdicts | (notable - {"intended"})
    worst = next(verdict for verdict in _WORST_FIRST if verdict in counted or verdict == "ok")
    return "warned" if worst == "wrong" and severest == "warning" else worst


@dataclass(frozen=True, slots=True)
class ReportData:
    """The outcome of an audit, without its presentations.

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
            by_place.setdefault(finding.place, []).append(finding)
        # Two of one name in one file share their findings: the first has them.
        return [(subject, by_place.pop((subject.name, subject.location.file), [])) for subject in self.subjects]

    def at_least(self, severity: Severity) -> tuple[Finding, ...]:
        """Return the findings whose severity is `severity` or worse."""
        floor = SEVERITIES.index(severity)
        return tuple(f for f in self.findings if SEVERITIES.index(f.severity) >= floor)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, the form that `to_json` writes."""

        return {
            "version": versions(),
            "subjects": [to_plain(subject) for subject in self.subjects],
            "findings": [to_plain(finding) for finding in self.findings],
            "summary": self.summary,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Rebuild a report from the result of `to_dict`, or from parsed JSON of `to_json`."""

        return cls(
            tuple(map(subject_from_dict, data["subjects"])),
            tuple(map(finding_from_dict, data["findings"])),
            data["summary"]["allowed"],
            data["summary"]["known"],
        )

    def to_json(self, indent: int | None = 2) -> str:
        """Return the report as one strict JSON object; NaN and infinities are written as strings."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)


def to_plain(part: SubjectResult | Finding) -> dict[str, Any]:
    """Return a subject or a finding as plain data that strict JSON can hold."""
    return cast(dict[str, Any], _plain(asdict(part)))


def subject_from_dict(data: dict[str, Any]) -> SubjectResult:
    """Rebuild a subject from `to_plain`'s data."""
    measured = measurements_from_dict(data["measured"])
    absent = tuple(data.get("absent", ()))  # absent in results of an earlier version
    return SubjectResult(**{**data, "location": Location(**data["location"]), "measured": measured, "absent": absent})


def finding_from_dict(data: dict[str, Any]) -> Finding:
    """Rebuild a finding from `to_plain`'s data."""
    evidence = data["evidence"]
    if evidence is not None:
        numbers = {key: _number(evidence[key]) for key in ("expected", "got", "error_bar")}
        index = evidence["worst_index"]
        evidence = Evidence(**{**evidence, **numbers, "worst_index": None if index is None else tuple(index)})
    return Finding(**{**data, "location": Location(**data["location"]), "evidence": evidence})


def measurements_from_dict(data: dict[str, Any]) -> Measurements:
    """Rebuild measurements from the result of `dataclasses.asdict`, directly or from parsed JSON."""
    return Measurements(
        tuple(ContextResult(**one) for one in data["contexts"]),
        tuple(GradientCurve(**_tuples(one)) for one in data["slopes"]),
        tuple(UlpErrors(**_tuples(one)) for one in data["errors"]),
        data.get("guessed", False),  # absent in results of an earlier version
        data.get("interpreted", False),
    )


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}


def _number(value: Any) -> Any:
    return float(value) if value in ("nan", "inf", "-inf") else value


def _plain(value: Any) -> Any:
    """Replace values that strict JSON lacks: NaN, infinities, tuples."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def versions() -> dict[str, str]:
    """Return the versions that a report depends on."""
    return {"pullback": version("pullback"), "torch": version("torch"), "python": platform.python_version()}
