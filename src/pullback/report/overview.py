"""Parts of a report about all functions: the table above the findings, and the infos below them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pullback.report.model import Finding, ReportData, Status, SubjectResult
from pullback.report.text import (
    INDENT,
    SEVERITY_STYLE,
    STATUS_STYLE,
    clean_line,
    count,
    labelled,
    print_wrapped,
    ranges,
)

_MOST = 20
"""Most rows of a table that lists correct functions one by one."""
_NAMES = 4
"""Functions that are named, if there are more."""
_LINES = 3
"""Lines of the names of correct functions."""
_WIDE = 60
"""Columns of a terminal that shows all columns of the table."""
_CORRECT: tuple[Status, ...] = ("ok", "intended")

Row = tuple[SubjectResult, Sequence[Finding]]


def print_table(report: ReportData, console: Console, in_full: bool) -> None:
    """Print one row per function, under its file; if there are many functions, only those with findings.

    Args:
        report: the result.
        console: the output.
        in_full: print the rows of all correct functions, too.
    """
    rows: list[Row] = list(report.by_subject())
    folds = len(rows) > _MOST and not in_full
    correct = [row[0] for row in rows if folds and _is_correct(*row)]
    kept = [row for row in rows if not folds or not _is_correct(*row)]
    if kept:
        console.print(_table(kept, narrow=console.width < _WIDE))
    for status in _CORRECT:
        if names := [clean_line(subject.name) for subject in correct if subject.status == status]:
            text = Text.assemble((f"{len(names)} {status}", STATUS_STYLE[status]), f": {_listed(names, console.width)}")
            print_wrapped(text, console, 0)


def _listed(names: Sequence[str], width: int) -> str:
    """Return the names that fit on a few lines, and the number of the others."""
    room, shown = _LINES * (width - 2 * INDENT) - len("200 intended and 200 more"), 0
    while shown < len(names) and (room := room - len(names[shown]) - 2) > 0:
        shown += 1
    more = f" and {len(names) - shown} more" if shown < len(names) else ""
    return ", ".join(names[:shown]) + more


def _is_correct(subject: SubjectResult, findings: Sequence[Finding]) -> bool:
    return subject.status in _CORRECT and all(finding.severity == "info" for finding in findings)


def _table(rows: Sequence[Row], narrow: bool) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    table.add_column("status", no_wrap=True)
    table.add_column("function", overflow="fold")
    for heading in ("err", "warn") if narrow else ("line", "err", "warn", "info", "cases", "sec"):
        table.add_column(heading, justify="right", no_wrap=True)
    for file, members in groupby(rows, key=lambda row: row[0].location.file):
        table.add_row("", Text(clean_line(file or "no file"), style="bold"))
        for subject, findings in members:
            table.add_row(
                Text(subject.status, style=STATUS_STYLE[subject.status]),
                Text(f"  {clean_line(subject.name)}"),
                *_numbers_of_row(subject, findings, narrow),
            )
    return table


def _numbers_of_row(subject: SubjectResult, findings: Sequence[Finding], narrow: bool) -> list[Text | str]:
    counted = Counter(finding.severity for finding in findings)
    errors, warnings, infos = (Text(str(counted[s] or ""), style=style) for s, style in SEVERITY_STYLE.items())
    if narrow:
        return [errors, warnings]
    line = str(subject.location.line or "")
    return [line, errors, warnings, infos, str(subject.cases), f"{subject.seconds:.1f}"]


def is_dropped(finding: Finding) -> bool:
    """Whether a finding says that PyTorch drops the backward, as it does for every function."""
    return finding.of_pytorch and finding.verdict == "wrong"


def print_infos(infos: Sequence[Finding], dropped: Sequence[Finding], console: Console) -> None:
    """Print the infos of all functions: unsupported contexts, intended deviations, and the ids of the rest.

    Args:
        infos: infos of every function.
        dropped: infos about PyTorch dropping a backward, printed once.
        console: the output.
    """
    unsupported = [finding for finding in infos if finding.verdict == "unsupported"]
    intended = [finding for finding in infos if finding.verdict == "intended"]
    others = [finding for finding in infos if finding not in unsupported and finding not in intended]
    several = len(_names(infos)) > 1
    texts = []
    if unsupported:
        texts.append(labelled("info", _unsupported(unsupported, several)))
    if others:
        texts.append(labelled("info", _others(others, several, console.width)))
    if intended:
        texts.append(labelled("info", _intended(intended)))
    if dropped:
        texts.append(_dropped(dropped))
    for text in texts:
        print_wrapped(text, console, 0)
    if texts:
        console.print()


def _unsupported(findings: Sequence[Finding], several: bool) -> str:
    """Return the contexts that functions do not support: "no support for torch.func (PB405, PB408), vmap (PB406)"."""
    by_context: dict[str, list[Finding]] = {}
    for finding in sorted(findings, key=lambda finding: finding.rule):
        by_context.setdefault(finding.context or finding.name, []).append(finding)
    parts = (
        f"{context} ({ranges(finding.rule for finding in members)})" + f" in {len(_names(members))}" * several
        for context, members in by_context.items()
    )
    return f"no support for {', '.join(parts)}" + " functions" * several


def _others(findings: Sequence[Finding], several: bool, width: int) -> str:
    """Return the ids, and the names for a single function, if they fit on a line."""
    named = ", ".join(dict.fromkeys(f"{finding.rule} {finding.name}" for finding in findings))
    incomplete = [f for f in findings if f.name == "not-run"]
    of_time = any(f.hint == "raise --budget" for f in incomplete)
    why = "no time was left for some rules; raise --budget" if of_time else "some rules did not run; -v says why"
    remark = f" ({incomplete[0].rule}: {why})" if incomplete else ""
    for text in (f"{named} ({why})" if incomplete else named, named) if not several else ():
        if len(text) <= width - 2 * INDENT:
            return text
    ids = ranges(finding.rule for finding in findings)
    return f"{ids} in {count(len(_names(findings)), 'function')}{remark}" if several else ids


def _intended(findings: Sequence[Finding]) -> str:
    """Return the message on a gradient that is intentionally not a derivative, or the number of such functions."""
    first, *others = findings
    if not others:
        return f"{first.rule} {first.name}, {clean_line(first.subject)}: {clean_line(first.message)}"
    ids = ranges(finding.rule for finding in findings)
    return f"{ids}: not the derivative, apparently on purpose, in {count(len(_names(findings)), 'function')}"


def _dropped(findings: Sequence[Finding]) -> Text:
    """Return the message on functions whose backward PyTorch's exporter or compiler drops."""
    rules = ranges(finding.rule for finding in findings)
    where = " and ".join(dict.fromkeys(f.context for f in sorted(findings, key=lambda f: f.rule)))
    text = f"{rules}: PyTorch drops the backward of {_few(findings)} in {where}; pullback.function keeps it"
    return labelled("info", text)


def _few(findings: Sequence[Finding]) -> str:
    names = [clean_line(name) for name in _names(findings)]
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more


def _names(findings: Sequence[Finding]) -> list[str]:
    return [name for name, _ in dict.fromkeys(finding.place for finding in findings)]
