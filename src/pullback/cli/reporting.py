"""Options and output of the commands that audit: format of the report, baseline, exit status."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from pullback.cli.completion import RuleType
from pullback.cli.console import progress

if TYPE_CHECKING:
    from pullback.check.events import Progress
    from pullback.check.subject import Options
    from pullback.report.report import Report

_RULES = RuleType()

Form = Literal["text", "json", "sarif", "html"]

_OPTIONS = (
    click.option(
        "--format",
        "form",
        type=click.Choice(["text", "json", "sarif", "html"]),
        default="text",
        metavar="FORM",
        help="Write the report as text, json, sarif or html.",
    ),
    click.option("--output", "-o", type=click.Path(dir_okay=False), metavar="FILE", help="Write the report to FILE."),
    click.option(
        "--select", type=_RULES, multiple=True, metavar="PB1,…", help="Run only these rules (ids, prefixes or names)."
    ),
    click.option("--ignore", type=_RULES, multiple=True, metavar="PB4,…", help="Skip these rules."),
    click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Seed all random choices."),
    click.option(
        "--budget",
        type=float,
        default=10.0,
        show_default=True,
        metavar="SECONDS",
        help="Target CPU time per function.",
    ),
    click.option(
        "--fail-on",
        type=click.Choice(["error", "warning", "info", "never"]),
        default="error",
        metavar="SEVERITY",
        help="Exit 1 from error (default), warning, info or never.",
    ),
    click.option("--baseline", type=click.Path(dir_okay=False), metavar="FILE", help="Hide the findings in FILE."),
    click.option("--update-baseline", is_flag=True, help="Write the findings to the baseline."),
    click.option("--deep", is_flag=True, help="Also run Inductor and search random inputs (slow)."),
    click.option(
        "--jobs",
        type=click.IntRange(1),
        metavar="N",
        help="Run N audits at once; default: one per core.",
    ),
    click.option("-v", "verbose", is_flag=True, help="Show all findings in full, with scripts."),
    click.option("-q", "quiet", is_flag=True, help="Show no progress."),
)
"""Options of the commands that audit. Each help fits the one line that `pullback check --help` has for it."""


def reporting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of a command that has the options of `Reporting`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Reporting:
    """Values of the options, named as on the command line.

    Raises:
        OptionError: if there is no such baseline, or rule, or a number is out of range.
    """

    form: Form
    output: str | None
    select: tuple[str, ...]
    ignore: tuple[str, ...]
    seed: int
    budget: float
    fail_on: Literal["error", "warning", "info", "never"]
    baseline: str | None
    update_baseline: bool
    deep: bool
    jobs: int | None
    verbose: bool
    quiet: bool

    def __post_init__(self) -> None:
        if self.update_baseline and self.baseline is None:
            raise click.UsageError("--update-baseline needs --baseline FILE")
        require_writable(self.output)
        if self.update_baseline:
            require_writable(self.baseline)
        elif self.baseline:
            from pullback.report.baseline import read_baseline

            read_baseline(Path(self.baseline))  # before anything runs

    @property
    def audit(self) -> Options:
        """The validated options of the audit."""
        from pullback.check.options import make_options

        return make_options(self.select, self.ignore, self.seed, self.budget, self.deep, self.jobs)

    def progress(self) -> AbstractContextManager[Progress]:
        """Show the progress of an audit, during a block."""
        return progress("auditing", "functions", is_quiet=self.quiet)

    def end(self, report: Report, advise_fix: bool = False) -> int:
        """Show a report, or write it as a baseline, and return the exit status.

        The status is 1 if a finding is at least as severe as `fail_on`, and 2 if no function could be audited.
        """
        from pullback.report.baseline import read_baseline, without, write_baseline

        if self.baseline and self.update_baseline:
            count = write_baseline(report, Path(self.baseline))
            click.echo(f"pullback: {self.baseline}: {count} known finding{'s' * (count != 1)}", err=True)
            return 0
        if self.baseline:
            report = without(report, read_baseline(Path(self.baseline)))
        self._show(report, advise_fix)
        if self.fail_on == "never":
            return 0
        none_ran = bool(report.subjects) and all(subject.status == "unaudited" for subject in report.subjects)
        return 1 if report.at_least(self.fail_on) else 2 * none_ran

    def show_finished(self, report: Report, known: int) -> None:
        """Show what was audited before Ctrl-C, as text only: a file, or a format for programs, is never partial."""
        if report.subjects and self.form == "text" and self.output is None and not self.update_baseline:
            self._show(report)
            click.echo(f"pullback: {len(report.subjects)} of {known} functions were audited", err=True)

    def _show(self, report: Report, advise_fix: bool = False) -> None:
        from rich.console import Console

        from pullback.report.terminal import render

        console, in_full = Console(highlight=False), self.verbose
        if self.form == "text" and self.output is None and console.is_terminal:
            render(report, console, in_full, advise_fix)
            return
        text = _text_of(report, self.form, in_full, advise_fix)
        if self.output is None:
            click.echo(text, nl=False)
            return
        try:
            _write(Path(self.output), text)
        except OSError as error:
            raise click.FileError(self.output, error.strerror) from None


def _write(path: Path, text: str) -> None:
    """Write a file completely or, if the disk is full, not at all."""
    path = path.resolve()
    if (path.exists() and not path.is_file()) or not os.access(path.parent, os.W_OK):  # a pipe, a device
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8", errors="backslashreplace")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def require_writable(file: str | None) -> None:
    """Raise before the audit if its file cannot be written."""
    if file is None:
        return
    place = Path(file) if Path(file).exists() else Path(file).parent
    if not place.exists():
        raise click.FileError(file, f"there is no folder {place}")
    if Path(file).is_dir() or not os.access(place, os.W_OK):
        raise click.FileError(file, "it cannot be written")


def _text_of(report: Report, form: Form, in_full: bool, advise_fix: bool) -> str:
    if form == "text":
        from pullback.report.terminal import render_text

        return render_text(report, in_full, advise_fix)
    if form == "json":
        return report.to_json() + "\n"
    if form == "html":
        from pullback.report.html import to_html

        return to_html(report) + "\n"
    from pullback.check.pages import all_pages
    from pullback.report.sarif import to_sarif

    return to_sarif(report, {page.id: page.text for page in all_pages()}) + "\n"
