"""The report as one HTML file: no script, nothing from the network, light and dark, readable on a phone.

Names, messages and code come from what was audited: the template escapes whatever it is given.
"""

from __future__ import annotations

from dataclasses import dataclass

import jinja2
import markupsafe

from pullback.report.clean import clean, clean_line
from pullback.report.excerpt import Line, excerpt
from pullback.report.model import Finding, Report, SubjectResult, versions
from pullback.report.terminal import blocks_of, numbers_of, summary_of


@dataclass(frozen=True)
class _Shown:
    """A finding as the page shows it."""

    finding: Finding
    lines: list[Line]
    numbers: str
    blocks: list[tuple[str, str]]


@dataclass(frozen=True)
class _Part:
    """A subject, its findings that are shown in full, and those that are named only."""

    anchor: str
    subject: SubjectResult
    shown: list[_Shown]
    infos: list[Finding]


def to_html(report: Report) -> str:
    """Return the report as a page of its own."""
    return _template().render(report=report, parts=_parts(report), summary=summary_of(report), versions=versions())


def to_frame(report: Report) -> str:
    """Return the page in a frame, as notebooks show it: its style and theirs stay apart."""
    style = "width: 100%; height: 30rem; border: 0; resize: vertical"
    return str(markupsafe.Markup('<iframe sandbox srcdoc="{}" style="{}"></iframe>').format(to_html(report), style))


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pullback.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"clean": clean, "line": clean_line}
    return environment.get_template("report.html.jinja")


def _parts(report: Report) -> list[_Part]:
    by_place: dict[tuple[str, str | None], list[Finding]] = {}
    for finding in report.findings:
        by_place.setdefault((finding.subject, finding.location.file), []).append(finding)
    parts = []
    for number, subject in enumerate(report.subjects, 1):
        findings = by_place.pop((subject.name, subject.location.file), [])
        shown = [_shown(f) for f in findings if f.severity != "info"]
        parts.append(_Part(f"f{number}", subject, shown, [f for f in findings if f.severity == "info"]))
    return parts


def _shown(finding: Finding) -> _Shown:
    return _Shown(finding, excerpt(finding.location), numbers_of(finding.evidence), list(blocks_of(finding.evidence)))
