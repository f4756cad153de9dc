"""Known findings of an audit: a file with which legacy code starts green, so that only new findings fail.

A finding is identified by its rule, severity, function and file, but not its line, which every edit above it moves.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pullback.errors import OptionError
from pullback.report.model import Finding, ReportData, SubjectResult, status_of

AnyReport = TypeVar("AnyReport", bound=ReportData)
Key = tuple[str, str, str, str]
_VERSION = 1
_FIELDS = ("rule", "severity", "subject", "file")


def key_of(finding: Finding) -> Key:
    """The identity of a finding."""
    return _key_by(finding.rule, finding)


def _key_by(rule: str, finding: Finding) -> Key:
    return rule, finding.severity, finding.subject, (finding.location.file or "").replace("\\", "/")


def write_baseline(report: ReportData, path: Path) -> int:
    """Write the findings of a report to a file, in an order that keeps diffs small, and return their number.

    Raises:
        OptionError: if the file cannot be written.
    """
    counted = Counter(key_of(finding) for finding in report.findings)
    entries = [dict(zip(_FIELDS, key, strict=True)) | {"count": n} for key, n in sorted(counted.items())]
    text = json.dumps({"version": _VERSION, "findings": entries}, indent=1) + "\n"
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise OptionError(f"the baseline {path} cannot be written: {error.strerror}.") from None
    return counted.total()


def read_baseline(path: Path) -> Counter[Key]:
    """Return the known findings with their counts.

    Raises:
        OptionError: if there is no such file, or it is not a baseline.
    """
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != _VERSION:
            raise OptionError(f"{path} is a baseline of another version of Pullback: make it anew, --update-baseline.")
        return Counter({_key(entry): int(entry["count"]) for entry in data["findings"]})
    except FileNotFoundError:
        raise OptionError(f"there is no baseline {path}: --update-baseline writes it.") from None
    except OSError as error:
        raise OptionError(f"the baseline {path} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        raise OptionError(f"{path} is not a baseline; --update-baseline writes one.") from None


def _key(entry: dict[str, Any]) -> Key:
    rule, severity, subject, file = (str(entry[name]) for name in _FIELDS)
    return rule, severity, subject, file


def without(report: AnyReport, known: Counter[Key]) -> AnyReport:
    """Return a report without known findings; its `known` is their number."""
    left, new = known.copy(), []
    for finding in report.findings:
        keys = [key_of(finding), *([_key_by(finding.alias, finding)] if finding.alias else [])]
        if key := next((key for key in keys if left[key] > 0), None):
            left[key] -= 1
        else:
            new.append(finding)
    subjects = tuple(_judged(subject, report.findings, new) for subject in report.subjects)
    return replace(report, subjects=subjects, findings=tuple(new), known=len(report.findings) - len(new))


def _judged(subject: SubjectResult, before: Sequence[Finding], left: Sequence[Finding]) -> SubjectResult:
    """Return a subject with the status of its remaining findings."""
    here = subject.name, subject.location.file
    was, now = ([f for f in findings if f.place == here] for findings in (before, left))
    if len(was) == len(now):
        return subject
    status = status_of(now)
    hidden = any(finding.severity != "info" for finding in was)
    return replace(subject, status="known" if status == "ok" and hidden else status)
