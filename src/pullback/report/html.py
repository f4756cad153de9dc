"""The report as one HTML file: no script, nothing from the network, light and dark, readable on a phone.

Names, messages and code come from the audited code: the template escapes all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import jinja2
import markupsafe

from pullback.report import plots
from pullback.report.evidence import SourceLine, blocks_of, excerpt, groups_of, numbers_of
from pullback.report.model import ContextState, Finding, ReportData, SubjectResult, versions
from pullback.report.terminal import summary_of
from pullback.report.text import clean, clean_line

_DRAWN = 40
"""Functions with plots: a plot takes some 15 kB and 30 ms."""
_MARKS: Mapping[ContextState, str] = {
    "ok": "✓",
    "unsupported": "○",
    "intended": "◇",
    "inconclusive": "?",
    "warning": "!",
    "error": "✗",
    "not tried": "–",
}
_WORDS: Mapping[ContextState, str] = {
    "ok": "ok",
    "unsupported": "refused",
    "intended": "intended",
    "inconclusive": "undecided",
    "warning": "warning",
    "error": "error",
    "not tried": "not tried",
}


@dataclass(frozen=True)
class _Shown:
    """A finding as the page shows it."""

    finding: Finding
    lines: list[SourceLine]
    numbers: str
    blocks: list[tuple[str, str]]


@dataclass(frozen=True)
class _Group:
    """A finding in full, and its consequences, folded."""

    first: _Shown
    also: list[_Shown]


@dataclass(frozen=True)
class _Figure:
    """A plot and its caption."""

    picture: markupsafe.Markup
    caption: str


@dataclass(frozen=True)
class _SubjectSection:
    """A subject: the findings shown in full, those only named, and the plots."""

    anchor: str
    subject: SubjectResult
    counts: Mapping[str, int]
    groups: list[_Group]
    infos: list[Finding]
    figures: list[_Figure]

    @property
    def has_section(self) -> bool:
        """Whether it has findings."""
        return bool(self.groups or self.infos)


def to_html(report: ReportData) -> str:
    """Return the report as a self-contained page."""
    measured = [subject.name for subject in report.subjects if subject.measured.slopes or subject.measured.errors]
    drawn = measured[:_DRAWN] if plots.can_plot() else []
    parts = [_section(n, *one, draws=one[0].name in drawn) for n, one in enumerate(report.by_subject(), 1)]
    return _template().render(
        report=report,
        files=_by_file(parts),
        sections=sorted((part for part in parts if part.has_section), key=_mildness),
        summary=summary_of(report),
        versions=versions(),
        missing_plots=_missing(len(measured), len(drawn)),
        marks=_MARKS,
        words=_WORDS,
    )


def _by_file(parts: Sequence[_SubjectSection]) -> dict[str, list[_SubjectSection]]:
    files: dict[str, list[_SubjectSection]] = {}
    for part in parts:
        files.setdefault(part.subject.location.file or "no file", []).append(part)
    return files


def _mildness(part: _SubjectSection) -> int:
    """Return a sort key that puts functions with errors first, then those with warnings."""
    return next((k for k, severity in enumerate(("error", "warning")) if part.counts[severity]), 2)


def to_frame(report: ReportData) -> str:
    """Return the page in a frame for notebooks, which isolates its style."""
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


def _missing(measured: int, drawn: int) -> str:
    """Return why some plots are missing; empty if none are."""
    if drawn == measured:
        return ""
    return f"those of the first {drawn} functions are" if drawn else "for pictures, pip install 'pullback[plots]'"


def _section(number: int, subject: SubjectResult, findings: Sequence[Finding], draws: bool) -> _SubjectSection:
    groups = groups_of(findings)
    return _SubjectSection(
        anchor=f"f{number}",
        subject=subject,
        counts=Counter(finding.severity for finding in findings),
        groups=[_Group(_shown(g.first), list(map(_shown, g.also))) for g in groups if g.first.severity != "info"],
        infos=[f for g in groups if g.first.severity == "info" for f in (g.first, *g.also)],
        figures=list(_figures(subject)) if draws else [],
    )


def _shown(finding: Finding) -> _Shown:
    return _Shown(finding, excerpt(finding.location), numbers_of(finding.evidence), list(blocks_of(finding.evidence)))


def _figures(subject: SubjectResult) -> Iterator[_Figure]:
    measured = subject.measured
    for slope in measured.slopes:
        caption = f"The gradient of {slope.by}, in float64; ten error bars of the numeric derivative are shaded."
        yield _Figure(plots.slope_plot(slope, subject.name), caption)
    by_quantity = sorted(measured.errors, key=lambda e: (e.of != "value", e.of))
    for of, found in groupby(by_quantity, key=lambda e: e.of):
        members = list(found)
        exact = "exact values" if all(one.exact for one in members) else "a float64 run"
        caption = f"The error of the {of} in ulp, against {exact}, over the range of the input; ×: a wrong NaN, ∞ or 0."
        yield _Figure(plots.error_plot(of, members, subject.name), caption)
