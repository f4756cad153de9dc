"""`pullback check`: audit custom functions and, with `--fix`, fix them."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click

from pullback.cli.options import TARGET
from pullback.cli.reporting import Reporting, reporting


@click.command(short_help="Audit custom autograd functions, and fix them.")
@click.argument("targets", nargs=-1, required=True, type=TARGET, metavar="TARGET...")
@click.option(
    "--inputs", type=TARGET, metavar="FILE:FUNCTION", help="FUNCTION(target) gives example calls [((x, w), {})]."
)
@click.option(
    "--exclude", multiple=True, metavar="PATTERN", help="Leave out matching files of a folder, as in 'old/*'."
)
@click.option("--interpret", is_flag=True, help="Interpret Triton kernels even if there is a GPU.")
@click.option("--fix", is_flag=True, help="Fix errors and warnings, and infos with --select.")
@click.option("--diff", is_flag=True, help="Print what --fix would change; exit with 1 if any.")
@click.option("--unsafe-fixes", is_flag=True, help="Also apply fixes that may change intended behaviour.")
@reporting
@click.help_option("-h", "--help", hidden=True)  # the rest fits a screen of 24 lines
def check(
    targets: tuple[str, ...],
    inputs: str | None,
    exclude: tuple[str, ...],
    interpret: bool,
    fix: bool,
    diff: bool,
    unsafe_fixes: bool,
    **options: Any,
) -> int:
    """Import, run and audit each TARGET: a folder, file, module or ops.py:Square."""
    from pullback.check.cases.given import loader
    from pullback.check.find.folder import expanded
    from pullback.check.find.kernels import WITHOUT_GPU
    from pullback.check.runner.targets import Interrupted, run_targets

    atexit.register(
        gc.freeze
    )  # the last collection walks through all of PyTorch, for a second; nothing audited is here
    if interpret:  # before anything asks for a GPU
        os.environ.update(WITHOUT_GPU)
    reports = Reporting(**options)
    wanted = expanded(targets, exclude, lambda text: click.echo(f"pullback: {text}", err=True))
    if fix or diff:
        return _fix(wanted, inputs, not diff, unsafe_fixes, reports)
    if unsafe_fixes:
        raise click.UsageError("--unsafe-fixes needs --fix or --diff")
    audit, given = reports.audit, loader(inputs)
    try:
        with reports.progress() as on_progress:
            report = run_targets(wanted, audit, given, on_progress=on_progress)
    except Interrupted as stopped:
        reports.show_finished(stopped.report, stopped.known)
        raise
    return reports.end(report, advise_fix=True)


def _fix(targets: list[str], inputs: str | None, write: bool, unsafe: bool, reports: Reporting) -> int:
    """Fix targets: name each function on standard error, and either write the files or print the diff.

    Returns:
        The exit status: of the report on the fixed code, or with `--diff` 1 if there is a difference.
    """
    from pullback.check.cases.given import loader
    from pullback.fix.files import coloured_diff
    from pullback.fix.run import FixOptions, fix_targets, result_lines
    from pullback.report.baseline import read_baseline
    from pullback.report.text import clean_line

    if reports.update_baseline:
        raise click.UsageError("--update-baseline does not go with --fix or --diff: fix first, then update")
    audit = reports.audit
    with reports.progress() as on_progress:
        known = read_baseline(Path(reports.baseline)) if reports.baseline else Counter()
        fixed = fix_targets(targets, audit, loader(inputs), FixOptions(unsafe, write, known), on_progress)
        for line in result_lines(fixed.results, write):
            click.echo(clean_line(line), err=True)
        if not write:
            click.echo(coloured_diff(fixed.diff) if sys.stdout.isatty() else fixed.diff, nl=False)
    return reports.end(fixed.report) if write else int(bool(fixed.diff))
