"""The command line. Thin: what it does is in `pullback.check` and `pullback.report`.

torch is imported by the commands that need it, so that help and version answer at once.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any, Literal

import click

from pullback.cli_complete import Rules, Target
from pullback.cli_progress import progress
from pullback.cli_report import Reporting, reporting
from pullback.errors import PullbackError

if TYPE_CHECKING:
    from rich.console import Console

_CLEAN, _COULD_NOT_RUN, _INTERRUPTED, _UNREAD, _TERMINATED = 0, 2, 130, 141, 143

_NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""Exception of click 8.2 for a command without its arguments; earlier versions print the help themselves."""

_TARGET = Target()

_EPILOG = """\b
Exit status: 0 clean, 1 findings at or above --fail-on, 2 could not run.
Completion in bash: eval "$(_PULLBACK_COMPLETE=bash_source pullback)"
"""


def main() -> None:
    """Run the program: whatever is wrong with its use is one line on standard error and status 2."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    # As Ctrl-C does, a polite request to end leaves time to end what the audited code has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    sys.exit(_run())


def _run() -> int:
    try:
        status = program.main(prog_name="pullback", standalone_mode=False)
        if sys.stdout is not None:  # Python's own stand-in for a stream that the shell has closed
            sys.stdout.flush()
    except _NO_ARGUMENTS as error:
        click.echo(error.format_message(), err=True)
        return _COULD_NOT_RUN
    except click.ClickException as error:
        return _refuse(error.format_message())
    except PullbackError as error:
        return _refuse(str(error))
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has gone, as `| head` does; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _UNREAD
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _refuse(f"the report cannot be written: {error.strerror}")
    except SystemExit:
        if type(sys.stdout).__name__ == "PacifyFlushWrapper":  # so click says that the reader has gone
            return _UNREAD
        raise
    except Exception:  # a bug of ours is not to be taken for findings, which is what Python's own status 1 says
        traceback.print_exc()
        return _COULD_NOT_RUN
    return status if isinstance(status, int) else _CLEAN


def _refuse(message: str) -> int:
    from pullback.report.clean import clean_line

    click.echo(f"pullback: {clean_line(message)}", err=True)
    return _COULD_NOT_RUN


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    from pullback.report.model import versions

    found = versions()
    click.echo(f"pullback {found['pullback']} (torch {found['torch']}, python {found['python']})")
    context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}, epilog=_EPILOG)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the versions.",
)
def program() -> None:
    """Check, make and write custom autograd functions of PyTorch."""


@program.command(short_help="Audit custom autograd functions, and mend them.")
@click.argument("targets", nargs=-1, required=True, type=_TARGET, metavar="TARGET...")
@click.option("--inputs", type=_TARGET, metavar="FILE:FUNCTION", help="Function that gives example calls.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave out files of a folder, as in 'old/*'.")
@click.option("--fix", is_flag=True, help="Mend errors and warnings; infos with --select.")
@click.option("--diff", is_flag=True, help="Print what --fix would change; status 1 if it would.")
@click.option("--unsafe-fixes", is_flag=True, help="Also apply fixes that may change what is meant.")
@reporting
def check(
    targets: tuple[str, ...],
    inputs: str | None,
    exclude: tuple[str, ...],
    fix: bool,
    diff: bool,
    unsafe_fixes: bool,
    **options: Any,
) -> int:
    """Import, run and audit each TARGET: a folder, file, module or ops.py:Square."""
    from pullback.check.cases.given import loader
    from pullback.check.find.folder import expanded
    from pullback.check.runner.targets import Interrupted, run_targets

    reports = Reporting(**options)
    wanted = expanded(targets, exclude, lambda text: click.echo(f"pullback: {text}", err=True))
    if fix or diff:
        return _mend(wanted, inputs, not diff, unsafe_fixes, reports)
    if unsafe_fixes:
        raise click.UsageError("--unsafe-fixes needs --fix or --diff")
    audit, given = reports.audit, loader(inputs)
    try:
        with reports.progress() as on_progress:
            report = run_targets(wanted, audit, given, on_progress=on_progress)
    except Interrupted as stopped:
        reports.show_finished(stopped.report, stopped.known)
        raise
    return reports.end(report)


def _mend(targets: list[str], inputs: str | None, write: bool, unsafe: bool, reports: Reporting) -> int:
    from pullback.fix.command import run

    if reports.update_baseline:
        raise click.UsageError("--update-baseline does not go with --fix or --diff: fix first, then update")
    audit = reports.audit
    with reports.progress() as on_progress:
        report, changes = run(targets, inputs, audit, reports.baseline, write, unsafe, on_progress)
    return reports.end(report) if write else int(changes)


@program.command(
    context_settings={"allow_interspersed_args": False}, short_help="Run a program, and audit what it calls."
)
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is the name of a module.")
@click.option("--steps", type=click.IntRange(1), metavar="N", help="Audit after N backward passes, then go on.")
@click.argument("name", type=click.Path(), metavar="PROGRAM")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@reporting
def run(name: str, arguments: tuple[str, ...], is_module: bool, steps: int | None, **options: Any) -> int:
    """Run a program, and audit the custom autograd functions that it calls.

    They are audited on copies of their inputs once it has ended, also by an exception or Ctrl-C. Options of the
    program come after its name.
    """
    from pullback.check.watch.program import watched

    reports = Reporting(**options)
    return watched(name, list(arguments), is_module, steps, reports.audit, reports.end, reports.progress)


@program.command(short_help="Measure the errors of a function in ulp.")
@click.argument("target", type=_TARGET, metavar="TARGET:NAME")
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    metavar="float32 …",
    help="Dtype to measure in; may be repeated. All four by default.",
)
@click.option(
    "--order", type=int, default=1, show_default=True, help="Highest order of the derivatives to measure: 0, 1 or 2."
)
@click.option("--domain", multiple=True, metavar="'x>0' …", help="Where inputs lie: x>0, x<=2 or x=0:1.")
@click.option("--exhaustive", is_flag=True, help="Measure at every float32 number, which takes minutes.")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Processes for that; by default one per core.")
@click.option(
    "--resume", type=click.Path(dir_okay=False), metavar="FILE", help="File to store progress in, and to go on from."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random sample.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def accuracy(
    target: str,
    dtypes: tuple[str, ...],
    order: int,
    domain: tuple[str, ...],
    exhaustive: bool,
    jobs: int | None,
    resume: str | None,
    seed: int,
    form: Literal["text", "json"],
) -> None:
    """Measure a pointwise function and its derivatives against exact values, in ulp.

    TARGET:NAME is a function of one to three tensors in a file or a module: ops.py:swish, torch.nn.functional:gelu.
    It is imported and run.
    """
    from pullback.report.accuracy import render, render_text
    from pullback.stable.command import run

    with progress("measuring") as on_progress:
        measured = run(target, dtypes, order, domain, exhaustive, jobs, resume, seed, on_progress)
    if form == "json":
        click.echo(measured.to_json())
        return
    console = _console()
    if console.is_terminal:
        render(measured, console)
    else:
        click.echo(render_text(measured))


@program.command(short_help="Search for accurate forms of ops.")
@click.argument("target", type=_TARGET, metavar="TARGET[:NAME]")
@click.option("--dtype", "dtypes", multiple=True, metavar="float32 …", help="Of the inputs; float32 by default.")
@click.option(
    "--wide",
    type=click.Choice(["never", "where-needed", "always"]),
    default="where-needed",
    show_default=True,
    help="Whether forms for float32 may compute in float64.",
)
@click.option("--domain", multiple=True, metavar="'x>0' …", help="Where inputs lie: x>0, x<=2 or x=0:1.")
def stabilise(
    target: str,
    dtypes: tuple[str, ...],
    wide: Literal["never", "where-needed", "always"],
    domain: tuple[str, ...],
) -> None:
    """Search for accurate forms of the ops that a module derives, and write them beside it.

    TARGET is a file or a module, with the name of an op or without: ops.py, package.ops:swish. It is imported and
    run. What is found goes to ops.stable.toml, which belongs under version control and is used without a search.
    """
    from pullback.stable.precision import ball_type

    ball_type()  # python-flint is an extra
    from pullback.report.stable import render
    from pullback.stable.renew import run

    with progress("searching") as on_progress:
        renewal = run(target, dtypes, wide, domain, on_progress)
    render(renewal, _console())


@program.command(short_help="Write a plain autograd.Function.")
@click.argument("target", type=_TARGET, metavar="TARGET:NAME")
@click.option("--inputs", type=_TARGET, metavar="FILE:FUNCTION", help="Function that gives an example call.")
@click.option("--test", is_flag=True, help="Also write a test file.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="File to write, not standard output."
)
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
def write(target: str, inputs: str | None, test: bool, output: str | None, force: bool) -> None:
    """Write a plain autograd.Function, which depends on torch alone, of an op, a function or another Function.

    TARGET:NAME is in a file or a module: ops.py:swish, pullback.catalog:safe_norm. It is imported and run. Only
    the forward of a Function is used; the derivative is derived from it.
    """
    from pullback.write.command import run

    click.echo(run(target, inputs, test, output, force), nl=False)


@program.group()
def cache() -> None:
    """Show or empty the cache of compiled kernels."""


@cache.command()
def info() -> None:
    """Say where the cache is and what it holds."""
    from pullback import caches
    from pullback.node import calls as node

    click.echo(caches.root())
    for kept in caches.kept():
        click.echo(f"{kept.kind}: {kept.entries}, {kept.size / 1024:.0f} KiB")
    if trouble := node.EXTENSION.trouble():
        click.echo(f"a node cannot be compiled here, small calls run in Python: {trouble}")


@cache.command()
@click.option("--certificates", is_flag=True, help="The certificates too, which searches have to find again.")
def clear(certificates: bool) -> None:
    """Delete compiled kernels; they are built again on demand."""
    from pullback import caches

    for kind in caches.KINDS:
        if kind == "certificates" and not certificates:
            continue
        count = caches.clear(kind)
        if count or kind in ("kernels", "certificates"):
            click.echo(f"removed {count} {kind if count != 1 else kind.removesuffix('s')}")


@program.command(short_help="List the rules, or show the page of one.")
@click.argument("rule", type=Rules(), required=False)
def rules(rule: str | None) -> None:
    """List the rules, or those of a family such as PB1, or show the page of one, by id or name."""
    from pullback.check.pages import all_pages, page_named, unknown_rule
    from pullback.report.catalogue import render_catalogue, render_page

    listed = [page for page in all_pages() if rule is None or page.family == rule.upper()]
    if rule is None or listed:
        render_catalogue(listed, _console())
        return
    found = page_named(rule)
    if found is None:
        raise click.UsageError(unknown_rule(rule))
    render_page(found, _console())


def _console() -> Console:
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Piped(highlight=False)
