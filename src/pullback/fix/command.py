"""`pullback check --fix` and `--diff`: from the options to what is printed and the exit status."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from pullback.check.cases.given import loader
from pullback.check.events import Progress
from pullback.check.subject import Options
from pullback.fix.diff import coloured
from pullback.fix.run import How, mend
from pullback.fix.told import lines
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
    """Mend targets; say on standard error what became of each function, and print the diff if nothing is written.

    Args:
        targets: as on the command line.
        inputs: "FILE:function" that gives example calls.
        options: how to audit.
        baseline: a file of findings that are no reason to change anything.
        write: to the files; else the diff is printed.
        unsafe: also what may change what is meant.
        on_progress: told how far the audit is.

    Returns:
        The report on the code as it is now, and whether something changed, or would.

    Raises:
        PullbackError: if the targets or the options are wrong.
    """
    known = read_baseline(Path(baseline)) if baseline else Counter()
    mended = mend(targets, options, loader(inputs), How(unsafe, write, known), on_progress)
    for line in lines(mended.told, write):
        click.echo(clean_line(line), err=True)
    if not write:
        click.echo(coloured(mended.diff) if sys.stdout.isatty() else mended.diff, nl=False)
    return mended.report, bool(mended.diff)
