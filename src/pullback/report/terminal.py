"""The report as text: a table of subjects, the errors and warnings by subject, and the infos.

Names, messages and values come from audited code: they are printed as text, never as markup, and escaped.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from enum import Enum

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from pullback.report.evidence import Group, blocks_of, excerpt, groups_of, inputs_in, numbers_of
from pullback.report.model import Finding, ReportData, SubjectResult
from pullback.report.overview import is_dropped, print_infos, print_table
from pullback.report.text import (
    INDENT,
    NARROWEST,
    SEVERITY_STYLE,
    STATUS_STYLE,
    clean,
    clean_line,
    count,
    in_ranges,
    indented,
    print_cut,
    print_wrapped,
)

_TEXT_WIDTH = 80
_BLOCK_LINES = 12
_OF_ONE_POINT = "PB3"
"""Family whose messages already contain the numbers and the input."""
_NOT_RUN = "PB006"
"""Rule that reports what did not run."""


class Detail(Enum):
    """Level of detail per function."""

    MANY = "errors, and warnings in short"
    ONE = "the same, and a single group in full"
    TEST = "the same, with a script of the first error"
    FULL = "everything, with all scripts"


def render_text(report: ReportData, in_full: bool = False, advise_fix: bool = False, for_all: str = "-v") -> str:
    """Return the report as plain text."""
    console = _plain_console()
    render(report, console, in_full, advise_fix, for_all)
    return _text_of(console)


def render_failure(report: ReportData) -> str:
    """Return the text for a failing test: a summary line, then errors and warnings."""
    findings = report.at_least("warning")
    more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
    first = findings[0]
    console = _plain_console()
    _print_sections([finding for finding in findings if not is_dropped(finding)] or findings, console, Detail.TEST)
    return f"{clean_line(first.subject)}: {first.rule} {first.name}{more}\n\n{_text_of(console).rstrip()}"


def render_overview(report: ReportData) -> str:
    """Return the table of functions and the totals as text, where the findings were printed before."""
    console = _plain_console()
    print_table(report, console, in_full=False)
    console.print(summary_of(report), soft_wrap=True)
    return _text_of(console)


def render(
    report: ReportData, console: Console, in_full: bool = False, advise_fix: bool = False, for_all: str = "-v"
) -> None:
    """Print a report.

    Args:
        report: the result.
        console: the output; it determines width and colour.
        in_full: print every finding in full, with a script.
        advise_fix: whether to name `--fix`, if there is an error.
        for_all: what shows the omitted parts.
    """
    only_rule = _only_rule_of(report)
    shown: list[Finding] = []
    dropped: list[Finding] = []
    infos: list[Finding] = []
    for finding in report.findings:
        if in_full or finding.rule == only_rule:
            shown.append(finding)
        elif is_dropped(finding):
            dropped.append(finding)
        else:
            (infos if finding.severity == "info" else shown).append(finding)
    detail = Detail.FULL if in_full else Detail.ONE if only_rule or len(report.subjects) == 1 else Detail.MANY
    heading = _heading_of(report.subjects[0]) if len(report.subjects) == 1 else None
    if heading is None and report.subjects:
        print_table(report, console, in_full)
        console.print()
    _print_sections(shown, console, detail, heading)
    if heading is not None and not shown:
        console.print(heading, soft_wrap=True)
        console.print()
    print_infos(infos, dropped, console)
    _print_end(report, console, advise_fix)
    if in_full:
        console.print(summary_of(report), soft_wrap=True)
    else:
        _print_summary(report, console, bool(infos or dropped), for_all)


def _only_rule_of(report: ReportData) -> str:
    """Return the rule of all findings, as with `--select`, or "": its infos are printed like other findings.

    What did not run is no finding of another rule.
    """
    rules = {finding.rule for finding in report.findings}
    rules = rules - {_NOT_RUN} or rules
    return rules.pop() if len(rules) == 1 else ""


def _print_end(report: ReportData, console: Console, advise_fix: bool) -> None:
    """Print the limitations of the report: guessed inputs, missing imports."""
    failed = [s.measured for s, findings in report.by_subject() if any(f.severity == "error" for f in findings)]
    if guessed := [measured for measured in failed if measured.guessed]:
        can_derive = not all(measured.interpreted for measured in guessed)  # no derivative of a kernel
        advice = " Try --fix to repair this." if advise_fix and can_derive else ""
        console.print(f"Inputs were guessed; use --inputs to give your own.{advice}", style="dim")
    if absent := sorted({name for subject in report.subjects for name in subject.absent}):
        them = "it" if len(absent) == 1 else "them"
        is_any_audited = any(subject.status != "unaudited" for subject in report.subjects)
        rest = f"; the rest was audited without {them}" if is_any_audited else ""
        console.print(f"{', '.join(absent)} could not be imported{rest}.", style="dim")


def _print_summary(report: ReportData, console: Console, is_cut: bool, for_all: str) -> None:
    """Print the counts, and what shows the omitted parts."""
    summary = summary_of(report)
    has_scripts = any(finding.reproduce for finding in report.at_least("warning"))
    if is_cut or has_scripts:
        summary.append(f" ({for_all} shows all{', with scripts' * has_scripts})", style="dim")
    if any(subject.measured.guessed for subject in report.subjects) and not report.at_least("error"):
        summary.append(", on guessed inputs (--inputs gives others)", style="dim")
    console.print(summary, soft_wrap=True)


def _plain_console() -> Console:
    return Console(file=io.StringIO(), width=_TEXT_WIDTH, no_color=True, force_terminal=False, force_jupyter=False)


def _text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().split("\n"))


def _heading_of(subject: SubjectResult) -> Text:
    """Return the heading of a report on one function, in place of the table."""
    heading = Text(clean_line(subject.name), style="bold underline").append("  ", style="not underline")
    heading.append(subject.status, style=STATUS_STYLE[subject.status])
    place = clean_line(str(subject.location)) if subject.location.file else ""
    return heading.append(
        f"  {place}  {count(subject.cases, 'case')}, {subject.seconds:.1f} s", style="dim not underline"
    )


def _print_sections(findings: Sequence[Finding], console: Console, detail: Detail, heading: Text | None = None) -> None:
    """Print the findings of each function.

    Args:
        findings: findings of all functions.
        console: the output.
        detail: level of detail.
        heading: heading for the only function; by default, each function's name.
    """
    by_place: dict[tuple[str, str | None], list[Finding]] = {}
    for finding in findings:
        by_place.setdefault(finding.place, []).append(finding)
    for (name, _), members in by_place.items():
        console.print(heading or Text(clean_line(name), style="bold underline"), soft_wrap=True)
        groups = groups_of(members)
        if detail is Detail.FULL:
            for group in groups:
                for finding in (group.first, *group.also):
                    _print(finding, console, in_full=True, with_lines=True, with_script=True)
        else:
            _print_function(groups, console, detail)
        console.print()


def _print_function(groups: Sequence[Group], console: Console, detail: Detail) -> None:
    """Print the findings of one function: the first error with its numbers, the others in short."""
    alone = len(groups) == 1
    in_full = [g for g in groups if g.first.severity == "error" or (alone and detail is not Detail.MANY)]
    scripted = [group for group in in_full if group.first.reproduce and detail is Detail.TEST]
    for group in groups:
        first = group.first
        if first.severity == "warning" and group not in in_full:
            _print_short(first, console)
        else:
            _print(first, console, group in in_full[:1], with_lines=alone, with_script=group in scripted[:1])
        for finding in group.also:
            _print_also(finding, console)


def _print(finding: Finding, console: Console, in_full: bool, with_lines: bool, with_script: bool) -> None:
    """Print a finding: in full with its numbers, and on demand the source lines and the script as well."""
    if finding.severity == "info":
        message = in_ranges(clean_line(finding.message))
        print_wrapped(_heading(finding, location=False).append(f"  {message}"), console, 0)
        if in_full and finding.hint:
            print_wrapped(Text.assemble(("help: ", "bold green"), clean(finding.hint)), console)
        return
    console.print(_heading(finding, location=True), soft_wrap=True)
    print_wrapped(Text(in_ranges(clean(finding.message))), console)
    if in_full and with_lines:
        _print_excerpt(finding, console)
    has_numbers = finding.rule.startswith(_OF_ONE_POINT) and not with_script
    if in_full and not has_numbers:
        _print_evidence(finding, console)
    if finding.hint:
        print_wrapped(Text.assemble(("help: ", "bold green"), clean(finding.hint)), console)
    if finding.reproduce and with_script:
        console.print(indented(Text("reproduce:", style="dim")))
        for line in _highlighted(finding.reproduce):
            # Not wrapped: a wrapped line cannot be pasted into Python.
            console.print(indented(line, 2 * INDENT), soft_wrap=True)
    elif in_full and not has_numbers and (given := inputs_in(finding.reproduce)):
        print_cut(Text.assemble(("on ", "bold"), clean_line(given)), console, 1)


def _print_short(finding: Finding, console: Console) -> None:
    """Print a warning, cut to two lines."""
    heading = (finding.severity, SEVERITY_STYLE[finding.severity]), " ", (finding.rule, "bold"), f" {finding.name}: "
    print_cut(Text.assemble(*heading, clean_line(finding.message)), console, 2, indent=2)


def _print_evidence(finding: Finding, console: Console) -> None:
    """Print the numbers of a finding."""
    numbers = numbers_of(finding.evidence)
    if numbers:
        print_wrapped(Text(numbers, style="italic"), console)
    for heading, value in blocks_of(finding.evidence):
        print_wrapped(Text(f"{heading}:", style="italic"), console)
        _print_last_lines(value, console)


def _print_also(finding: Finding, console: Console) -> None:
    """Print the message of a consequence of another finding, cut to two lines."""
    heading = (f"also {finding.severity}", SEVERITY_STYLE[finding.severity]), " ", (finding.rule, "bold")
    print_cut(Text.assemble(*heading, f": {clean_line(finding.message)}"), console, 2)


def _print_excerpt(finding: Finding, console: Console) -> None:
    """Print the marked line of a finding and the lines after it, cut to the width."""
    width = max(NARROWEST, console.width - 2 * INDENT - 7)
    for line in excerpt(finding.location):
        shown = Text(line.text, style=SEVERITY_STYLE[finding.severity] if line.marked else "dim")
        shown.truncate(width, overflow="ellipsis")
        margin = f"{'>' if line.marked else ' '}{line.number:>4} | "
        console.print(indented(Text.assemble((margin, "dim"), shown)), soft_wrap=True)


def _print_last_lines(value: str, console: Console) -> None:
    """Print the last lines of a long text, cut to the width."""
    for line in clean(value).split("\n")[-_BLOCK_LINES:]:
        shown = Text(line, style="dim")
        shown.truncate(max(NARROWEST, console.width - 2 * INDENT), overflow="ellipsis")
        console.print(indented(shown, 2 * INDENT), soft_wrap=True)


def _heading(finding: Finding, location: bool) -> Text:
    style = SEVERITY_STYLE[finding.severity]
    heading = Text.assemble("  ", (finding.severity, style), " ", (finding.rule, "bold"), f" {finding.name}")
    return heading.append(f"  {clean_line(str(finding.location))}", style="dim") if location else heading


def _highlighted(code: str) -> list[Text]:
    syntax = Syntax("", "python", theme="ansi_dark", background_color="default")
    highlighted = syntax.highlight(clean(code).strip("\n"))
    highlighted.rstrip()
    return list(highlighted.split("\n"))


def summary_of(report: ReportData) -> Text:
    """Return the numbers of functions and findings on one line."""
    summary = report.summary
    counts = [
        (count(summary["errors"], "error"), "bold red"),
        (count(summary["warnings"], "warning"), "bold yellow"),
        (count(summary["infos"], "info"), "cyan"),
    ]
    found = [(text, style) for text, style in counts if not text.startswith("0 ")]
    line = Text(f"{count(summary['subjects'], 'function')}: ", style="bold")
    line.append_text(Text(", ").join(Text(text, style=style) for text, style in found))
    if not found:
        line.append("nothing found" if summary["subjects"] else "nothing was audited", style="green")
    for label, counted in (("not audited", "unaudited"), ("allowed", "allowed"), ("in the baseline", "known")):
        if summary[counted]:
            line.append(f"; {label}: {summary[counted]}")
    return line
