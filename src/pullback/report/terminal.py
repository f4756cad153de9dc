"""The report for people: a table of subjects, then what was found, subject by subject.

Names, messages and values come from audited code: they are shown as text, never as markup, and their control
characters never reach the terminal.
"""

from __future__ import annotations

import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from pullback.report.clean import clean, clean_line
from pullback.report.evidence import blocks_of, inputs_in, numbers_of
from pullback.report.excerpt import excerpt
from pullback.report.groups import OF_PYTORCH, groups_of
from pullback.report.model import Finding, Report, Severity, Status, SubjectResult

SEVERITY_STYLE: dict[Severity, str] = {"error": "bold red", "warning": "bold yellow", "info": "cyan"}

_STATUS_STYLE: dict[Status, str] = {
    "ok": "green",
    "wrong": "bold red",
    "unstable": "bold red",
    "unaudited": "bold yellow",
    "warned": "yellow",
    "known": "yellow",
    "inconclusive": "yellow",
    "unsupported": "yellow",
    "intended": "cyan",
}
_TEXT_WIDTH = 80
_INDENT = 4
_BLOCK_LINES = 12
_NARROWEST = 20
_NAMES = 4
"""Of functions that are named, where there are more."""
_WIDE = 60
"""Columns of a terminal that hold the whole table of functions."""


def render_text(report: Report) -> str:
    """Return the report as plain text."""
    console = _plain_console()
    render(report, console)
    return _text_of(console)


def render_failure(report: Report) -> str:
    """Return as plain text what a failing test has to tell: a line that sums up, then errors and warnings."""
    findings = report.at_least("warning")
    more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
    first = findings[0]
    console = _plain_console()
    _print_findings(findings, console, scripts=True)
    return f"{clean_line(first.subject)}: {first.rule} {first.name}{more}\n\n{_text_of(console).rstrip()}"


def render(report: Report, console: Console) -> None:
    """Print a report.

    Args:
        report: what to print.
        console: where to; it decides on width and colour.
    """
    if len(report.subjects) == 1:
        _print_alone(report.subjects[0], report.findings, console)
    else:
        if report.subjects:
            console.print(_table(report, narrow=console.width < _WIDE))
            console.print()
        _print_findings(report.findings, console)
    if any(f.severity == "error" and subject.measured.guessed for subject, found in report.by_subject() for f in found):
        console.print("Inputs were guessed: --inputs gives others. --fix derives a wrong backward anew.", style="dim")
    if absent := sorted({name for subject in report.subjects for name in subject.absent}):
        needs = "what needs them" if len(absent) > 1 else "what needs it"
        console.print(f"{', '.join(absent)} could not be imported: {needs} was not audited.", style="dim")
    summary = summary_of(report)
    if (rule := _cut_short(report.findings)) is not None:
        summary.append(f" (in full, with a script: --select {rule})", style="dim")
    console.print(summary, soft_wrap=True)


def _cut_short(findings: Sequence[Finding]) -> str | None:
    """Return the rule of the worst finding that was not told in full; `None` where there is none."""
    by_function = [list(members) for _, members in groupby(findings, key=lambda finding: finding.subject)]
    left = [f for members in by_function if not _is_alone(members) for f in members if f.severity != "info"]
    left.sort(key=lambda finding: finding.severity != "error")
    return left[0].rule if left else None


def _plain_console() -> Console:
    return Console(file=io.StringIO(), width=_TEXT_WIDTH, no_color=True, force_terminal=False)


def _text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().split("\n"))


def _print_alone(subject: SubjectResult, findings: Sequence[Finding], console: Console) -> None:
    """Print what was found of the one function of a report, whose row of the table is its heading."""
    heading = Text(clean_line(subject.name), style="bold underline").append("  ", style="not underline")
    heading.append(subject.status, style=_STATUS_STYLE[subject.status])
    place = clean_line(str(subject.location)) if subject.location.file else ""
    heading.append(f"  {place}  {_count(subject.cases, 'case')}, {subject.seconds:.1f} s", style="dim not underline")
    _print_findings(findings, console, heading)
    if not findings:
        console.print(heading, soft_wrap=True)
        console.print()


def _print_findings(
    findings: Sequence[Finding], console: Console, heading: Text | None = None, scripts: bool = False
) -> None:
    """Print the findings of each function, and once what is PyTorch's doing.

    Args:
        findings: what to print.
        console: where to.
        heading: of the one function that there is; its name, without.
        scripts: print one for each function, also beside other findings.
    """
    told: list[Finding] = []
    dropped: list[Finding] = []
    for finding in findings:
        is_dropped = finding.rule in OF_PYTORCH and finding.verdict == "wrong"
        (dropped if is_dropped else told).append(finding)
    if not told:  # nothing else was asked for
        told, dropped = dropped, []
    for name, members in groupby(told, key=lambda finding: finding.subject):
        console.print(heading or Text(clean_line(name), style="bold underline"), soft_wrap=True)
        _print_function(list(members), console, scripts)
        console.print()
    if dropped:
        _print_dropped(dropped, console)


def _print_function(findings: Sequence[Finding], console: Console, scripts: bool) -> None:
    """Print the findings of one function: the worst error with its numbers, the others in short, the infos on a line.

    What is alone is told in full, with its script, whatever it is: it was asked for.
    """
    shown, unsupported = _split(findings)
    groups = groups_of(shown)
    alone = _is_alone(findings)
    worst = next((group for group in groups if alone or group.first.severity == "error"), None)
    candidates = [g for g in groups if g.first.reproduce and (alone or (scripts and g.first.severity == "error"))]
    scripted = candidates[0] if candidates else None
    named = []
    for group in groups:
        first = group.first
        if first.severity == "info" and first.verdict != "intended" and not alone:
            named += [first, *group.also]
            continue
        if first.severity == "warning" and not alone:
            _print_short(first, console)
        else:
            is_only = all(other is group or other.first.severity == "info" for other in groups)
            _print(first, console, in_full=group is worst, with_lines=is_only, with_script=group is scripted)
        for finding in group.also:
            _print_also(finding, console)
    if alone:
        for finding in unsupported:
            _print(finding, console, in_full=True, with_lines=False, with_script=False)
        return
    parts = [_names_of(named)] * bool(named) + [_unsupported(unsupported)] * bool(unsupported)
    if parts:
        _print_infos("; ".join(parts), console)


def _is_alone(findings: Sequence[Finding]) -> bool:
    """Whether all that is said of a function is of one kind, as with `--select` of a rule."""
    shown, unsupported = _split(findings)
    return len(groups_of(shown)) + len(unsupported) == 1


def _print_infos(text: str, console: Console) -> None:
    """Print what infos there are; without their names, if these do not fit on a line."""
    if len(text) > console.width - 2 * _INDENT:
        text = _NAME.sub(r"\1", text)
    _print_wrapped(Text.assemble(("info", SEVERITY_STYLE["info"]), f" {text}"), console, 2)


_NAME = re.compile(r"(PB\d+) [a-z-]+")


def _names_of(findings: Sequence[Finding]) -> str:
    return ", ".join(dict.fromkeys(f"{finding.rule} {finding.name}" for finding in findings))


def _unsupported(findings: Sequence[Finding]) -> str:
    """Name the contexts that a function refuses: "no support for torch.func (PB405, PB408), vmap (PB406)"."""
    rules = dict.fromkeys((finding.rule, finding.name) for finding in findings)
    by_context: dict[str, list[str]] = {}
    for rule, name in rules:
        by_context.setdefault(_CONTEXTS.get(rule, name), []).append(rule)
    return "no support for " + ", ".join(f"{context} ({', '.join(ids)})" for context, ids in by_context.items())


_CONTEXTS = {
    **dict.fromkeys(["PB405", "PB408"], "torch.func"),
    "PB115": "inputs that broadcast",
    "PB116": "complex inputs",
    "PB119": "some inputs of the forward",
    "PB403": "second derivatives",
    "PB406": "vmap",
    "PB407": "jvp",
    "PB409": "torch.compile",
    "PB410": "torch.export",
    "PB413": "autocast",
    "PB414": "copying and pickling",
    "PB501": "other strides",
    "PB502": "strided cotangents",
    "PB503": "empty inputs",
    "PB504": "a size of 1",
    "PB505": "inputs without dimensions",
}
"""The contexts of the rules that tell of a refusal."""


def _print_dropped(findings: Sequence[Finding], console: Console) -> None:
    """Print once for a whole report which functions lose their backward in PyTorch's exporter and compiler."""
    rules = ",".join(dict.fromkeys(finding.rule for finding in findings))
    names = list(dict.fromkeys(clean_line(finding.subject) for finding in findings))
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    text = (
        f" {rules}: torch.export, and torch.compile of a torch.func transform, drop the backward of "
        f"{', '.join(names[:_NAMES])}{more}. That is PyTorch's doing; pullback.function(derivative_of=…) keeps it."
    )
    severity: Severity = "warning" if any(finding.severity == "warning" for finding in findings) else "info"
    _print_wrapped(Text.assemble((severity, SEVERITY_STYLE[severity]), text), console, 0)
    console.print()


def _split(findings: Iterable[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Set apart the infos about what is merely unsupported: they are named on one line together."""
    shown: list[Finding] = []
    unsupported: list[Finding] = []
    for finding in findings:
        plain = finding.severity == "info" and finding.verdict == "unsupported"
        (unsupported if plain else shown).append(finding)
    return shown, unsupported


def _table(report: Report, narrow: bool) -> Table:
    """Return one row for each subject, under the file that it is in."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    table.add_column("status", no_wrap=True)
    table.add_column("function", overflow="fold")
    for heading in ("err", "warn") if narrow else ("line", "err", "warn", "info", "cases", "sec"):
        table.add_column(heading, justify="right", no_wrap=True)
    for file, members in groupby(report.by_subject(), key=lambda part: part[0].location.file):
        table.add_row("", Text(clean_line(file or "no file"), style="bold"))
        for subject, findings in members:
            table.add_row(
                Text(subject.status, style=_STATUS_STYLE[subject.status]),
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


def _print(finding: Finding, console: Console, in_full: bool, with_lines: bool, with_script: bool) -> None:
    """Print a finding: in full with its numbers, and on demand the source lines and the script as well."""
    if finding.severity == "info":
        _print_wrapped(_heading(finding, location=False).append(f"  {clean_line(finding.message)}"), console, 0)
        if in_full and finding.hint:
            _print_wrapped(Text.assemble(("help: ", "bold green"), clean(finding.hint)), console)
        return
    console.print(_heading(finding, location=True), soft_wrap=True)
    _print_wrapped(Text(clean(finding.message)), console)
    if in_full and with_lines:
        _print_excerpt(finding, console)
    if in_full:
        _print_evidence(finding, console)
    if finding.hint:
        _print_wrapped(Text.assemble(("help: ", "bold green"), clean(finding.hint)), console)
    if finding.reproduce and with_script:
        console.print(_indented(Text("reproduce:", style="dim")))
        for line in _highlighted(finding.reproduce):
            # Not wrapped: a line that is cut in two can no longer be pasted into Python.
            console.print(_indented(line, 2 * _INDENT), soft_wrap=True)
    elif in_full and (given := inputs_in(finding.reproduce)):
        _print_cut(Text.assemble(("on ", "bold"), clean_line(given)), console, 1)


def _print_short(finding: Finding, console: Console) -> None:
    """Print of a warning what fits on two lines."""
    heading = (finding.severity, SEVERITY_STYLE[finding.severity]), " ", (finding.rule, "bold"), f" {finding.name}: "
    _print_cut(Text.assemble(*heading, clean_line(finding.message)), console, 2, indent=2)


def _print_cut(text: Text, console: Console, lines: int, indent: int = _INDENT) -> None:
    """Print as much of a text as fits on some lines."""
    width = max(_NARROWEST, console.width - _INDENT)
    wrapped = list(text.wrap(console, width))
    for line in wrapped:
        line.rstrip()
    if len(wrapped) > lines:
        last = Text(" ").join(wrapped[lines - 1 :])
        last.truncate(width, overflow="ellipsis")
        wrapped[lines - 1 :] = [last]
    for number, line in enumerate(wrapped):
        console.print(_indented(line, indent if number == 0 else _INDENT), soft_wrap=True)


def _print_evidence(finding: Finding, console: Console) -> None:
    """Print the numbers."""
    numbers = numbers_of(finding.evidence)
    if numbers:
        _print_wrapped(Text(numbers, style="italic"), console)
    for heading, value in blocks_of(finding.evidence):
        _print_wrapped(Text(f"{heading}:", style="italic"), console)
        _print_end(value, console)


def _print_also(finding: Finding, console: Console) -> None:
    """Print what a finding that another one leads says, and of an info what fits on a line."""
    is_info = finding.severity == "info"
    heading = (f"also {finding.severity}", SEVERITY_STYLE[finding.severity]), " ", (finding.rule, "bold")
    text = Text.assemble(*heading, "" if is_info else f" {finding.name}", f": {clean_line(finding.message)}")
    _print_cut(text, console, 1 if is_info else 2)


def _print_excerpt(finding: Finding, console: Console) -> None:
    """Print the line of a finding and its neighbours, each cut to the width, with a caret below what is meant."""
    width = max(_NARROWEST, console.width - 2 * _INDENT - 7)
    for line in excerpt(finding.location):
        style = SEVERITY_STYLE[finding.severity] if line.marked else "dim"
        rows = [(f"{line.number:>5} | ", line.text)] + [("      | ", line.caret)] * line.marked
        for margin, text in rows:
            shown = Text(text, style=style)
            shown.truncate(width, overflow="ellipsis" if text == line.text else "crop")
            console.print(_indented(Text.assemble((margin, "dim"), shown)), soft_wrap=True)


def _print_wrapped(text: Text, console: Console, indent: int = _INDENT) -> None:
    _print_cut(text, console, sys.maxsize, indent)


def _print_end(value: str, console: Console) -> None:
    """Print the last lines of a long text, each cut to the width."""
    for line in clean(value).split("\n")[-_BLOCK_LINES:]:
        shown = Text(line, style="dim")
        shown.truncate(max(_NARROWEST, console.width - 2 * _INDENT), overflow="ellipsis")
        console.print(_indented(shown, 2 * _INDENT), soft_wrap=True)


def _heading(finding: Finding, location: bool) -> Text:
    style = SEVERITY_STYLE[finding.severity]
    heading = Text.assemble("  ", (finding.severity, style), " ", (finding.rule, "bold"), f" {finding.name}")
    return heading.append(f"  {clean_line(str(finding.location))}", style="dim") if location else heading


def _indented(line: Text, by: int = _INDENT) -> Text:
    return Text(" " * by).append_text(line)


def _highlighted(code: str) -> list[Text]:
    syntax = Syntax("", "python", theme="ansi_dark", background_color="default")
    highlighted = syntax.highlight(clean(code).strip("\n"))
    highlighted.rstrip()
    return list(highlighted.split("\n"))


def summary_of(report: Report) -> Text:
    """Return how many functions there are and what was found, in one line."""
    summary = report.summary
    counts = [
        (_count(summary["errors"], "error"), "bold red"),
        (_count(summary["warnings"], "warning"), "bold yellow"),
        (_count(summary["infos"], "info"), "cyan"),
    ]
    found = [(text, style) for text, style in counts if not text.startswith("0 ")]
    line = Text(f"{_count(summary['subjects'], 'function')}: ", style="bold")
    line.append_text(Text(", ").join(Text(text, style=style) for text, style in found))
    if not found:
        line.append("nothing found" if summary["subjects"] else "nothing was audited", style="green")
    for label, counted in (("not audited", "unaudited"), ("allowed", "allowed"), ("in the baseline", "known")):
        if summary[counted]:
            line.append(f"; {label}: {summary[counted]}")
    return line


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
