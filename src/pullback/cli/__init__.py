"""The command line: one file per command. They parse options, call the library and print.

A command imports torch, and all that needs it, inside its function: help, completion and `--version` are immediate.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from typing import Any

import click

from pullback.cli import accuracy, cache, check, judge, rules, run, stabilise, write
from pullback.errors import PullbackError

_CLEAN, _COULD_NOT_RUN, _INTERRUPTED, _BROKEN_PIPE, _TERMINATED = 0, 2, 130, 141, 143
"""Exit statuses; the last three are 128 plus the number of the signal, as in a shell."""

_NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""Exception of click 8.2 for a command without its arguments; earlier versions print the help themselves."""

_EPILOG = """\b
Exit status: 0 clean, 1 findings at or above --fail-on, 2 could not run.
Completion in bash: eval "$(_PULLBACK_COMPLETE=bash_source pullback)"
"""


def main() -> None:
    """Run the program; a usage error is one line on standard error and status 2."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    # Like Ctrl-C, SIGTERM leaves time to end the processes that the audited code has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    sys.exit(_run())


def _run() -> int:
    try:
        status = program.main(prog_name="pullback", standalone_mode=False)
        if sys.stdout is not None:  # Python sets it to None if the shell has closed the stream
            sys.stdout.flush()
    except _NO_ARGUMENTS as error:
        click.echo(error.format_message(), err=True)
        return _COULD_NOT_RUN
    except (click.NoSuchOption, click.MissingParameter) as error:
        command = error.ctx.command_path if error.ctx else "pullback"
        return _refuse(f"{error.format_message()} See `{command} --help`.")
    except click.ClickException as error:
        return _refuse(error.format_message())
    except PullbackError as error:
        return _refuse(str(error))
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has gone, e.g. `| head`. Without this, Python complains when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _refuse(f"the report cannot be written: {error.strerror}")
    except SystemExit:
        if type(sys.stdout).__name__ == "PacifyFlushWrapper":  # click's sign of a broken pipe
            return _BROKEN_PIPE
        raise
    except Exception:  # a bug in Pullback must not exit with Python's own status 1, which means findings
        traceback.print_exc()
        return _COULD_NOT_RUN
    return status if isinstance(status, int) else _CLEAN


def _refuse(message: str) -> int:
    from pullback.report.text import clean_line

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


for _command in (
    accuracy.accuracy,
    cache.cache,
    check.check,
    judge.judge,
    rules.rules,
    run.run,
    stabilise.stabilise,
    write.write,
):
    program.add_command(_command)
