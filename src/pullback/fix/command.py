"""`pullback check --fix` and `--diff`: from the options to the printed text and the exit status."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from pullback.check.cases.given import loader
from pullback.check.events import Progress
from pullback.check.subject import Options
from pullback.fix.files import coloured_diff
from pullback.fix.run import FixOptions, fix_targets, result_lines
from pullback.report.baseline import read_baseline
from pullback.report.clean import clean_line
from pullback.report.model import Report


def run(
    targets: Sequence[str],
    inputs: str | None,
    options: Options,
    baseline: str | None,
    write: bool,
    unsafe: bool,
    on_progress: Progress,
) -> tuple[Report, bool]:
    """Fix targets; report each function on standard error, and print the diff if nothing is written.

    Args:
        targets: as on the command line.
        inputs: "FILE:function" that returns example calls.
        options: of the audit.
        baseline: a file of known findings, which are not fixed.
        write: whether to write the files; else the diff is printed.
        unsafe: also apply fixes that may change the intent.
        on_progress: called with the progress of the audit.

    Returns:
        The report on the resulting code, and whether something changed, or would.

    Raises:
        PullbackError: if the targets or the options are wrong.
    """
    known = read_baseline(Path(baseline)) if baseline else Counter()
    fixed = fix_targets(targets, options, loader(inputs), FixOptions(unsafe, write, known), on_progress)
    for line in result_lines(fixed.results, write):
        click.echo(clean_line(line), err=True)
    if not write:
        click.echo(coloured_diff(fixed.diff) if sys.stdout.isatty() else fixed.diff, nl=False)
    return fixed.report, bool(fixed.diff)
