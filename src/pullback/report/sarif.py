"""The report in SARIF 2.1.0 (OASIS, 2020), which code hosts show beside the lines in question."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from pullback.report.baseline import key_of
from pullback.report.model import Finding, ReportData, Severity, versions
from pullback.report.text import clean

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS: Mapping[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}


def to_sarif(report: ReportData, pages: Mapping[str, str]) -> str:
    """Return the report as a SARIF log of one run.

    Args:
        report: the result. Paths are relative to the working directory, as code hosts expect.
        pages: pages of the rules, by id.
    """
    named = {finding.rule: finding.name for finding in report.findings}
    ids = sorted(named)
    driver = {
        "name": "pullback",
        "semanticVersion": versions()["pullback"],
        "rules": [_rule(id_, named[id_], pages[id_]) for id_ in ids],
    }
    results = [_result(finding, ids.index(finding.rule)) for finding in report.findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule(id_: str, name: str, page: str) -> dict[str, Any]:
    summary = page.partition("\n")[0].partition(": ")[2]
    camel = "".join(map(str.capitalize, name.split("-")))
    return {"id": id_, "name": camel, "shortDescription": {"text": summary}, "help": {"text": page, "markdown": page}}


def _result(finding: Finding, position: int) -> dict[str, Any]:
    text = f"{finding.subject}: {finding.message}" + (f"\nHelp: {finding.hint}" if finding.hint else "")
    key = "\n".join(key_of(finding))
    return {
        "ruleId": finding.rule,
        "ruleIndex": position,
        "level": _LEVELS[finding.severity],
        "message": {"text": clean(text)},
        "locations": _locations(finding),
        "partialFingerprints": {"pullback/v1": hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()},
        "properties": {"verdict": finding.verdict, "subject": clean(finding.subject)},
    }


def _locations(finding: Finding) -> list[dict[str, Any]]:
    file, line = finding.location.file, finding.location.line
    if file is None:
        return []
    place: dict[str, Any] = {"artifactLocation": {"uri": quote(file.replace("\\", "/"))}}
    if line is not None:
        place["region"] = {"startLine": line}
    return [{"physicalLocation": place}]
