"""Subjects and findings as plain data that strict JSON can hold, and back.

They cross from the process that audits to the one that reports as JSON, never as a pickle: the audited code ran in the
former.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, cast

from pullback.report.measured import measured_from_dict
from pullback.report.model import Evidence, Finding, Location, SubjectResult


def subject_to_dict(subject: SubjectResult) -> dict[str, Any]:
    """Return a subject as plain data that strict JSON can hold."""
    return cast(dict[str, Any], _plain(asdict(subject)))


def subject_from_dict(data: dict[str, Any]) -> SubjectResult:
    """Rebuild a subject from `subject_to_dict`'s data."""
    measured = measured_from_dict(data["measured"])
    absent = tuple(data.get("absent", ()))  # none in an earlier version
    return SubjectResult(**{**data, "location": Location(**data["location"]), "measured": measured, "absent": absent})


def finding_to_dict(finding: Finding) -> dict[str, Any]:
    """Return a finding as plain data that strict JSON can hold."""
    return cast(dict[str, Any], _plain(asdict(finding)))


def finding_from_dict(data: dict[str, Any]) -> Finding:
    """Rebuild a finding from `finding_to_dict`'s data."""
    evidence = data["evidence"]
    if evidence is not None:
        numbers = {key: _number(evidence[key]) for key in ("expected", "got", "error_bar")}
        index = evidence["worst_index"]
        evidence = Evidence(**{**evidence, **numbers, "worst_index": None if index is None else tuple(index)})
    return Finding(**{**data, "location": Location(**data["location"]), "evidence": evidence})


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
