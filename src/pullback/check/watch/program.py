"""A program that is run and watched, from the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from pullback.check.events import Progress
from pullback.check.subject import Options
from pullback.check.watch.script import run_program
from pullback.check.watch.watching import Watch
from pullback.errors import PullbackError
from pullback.report.model import Report

_NOTHING_AUDITED = 2
"""Exit status of an audit that could not be run."""


def watched(
    name: str,
    arguments: list[str],
    is_module: bool,
    steps: int | None,
    options: Options,
    end: Callable[[Report], int],
    progress: Callable[[], AbstractContextManager[Progress]],
) -> int:
    """Run a program, audit what it called, and return its exit status, or that of the report if it ended well.

    If several processes train together (`torchrun`), only rank 0 is watched.

    Args:
        name: of a script or a module.
        arguments: its command line.
        is_module: whether it is a module.
        steps: number of backward passes after which to audit, instead of at its end.
        options: of the audit.
        end: takes the report, and returns an exit status.
        progress: shows the progress of the audit.

    Raises:
        TargetError: if there is no such program.
        RunnerError: if this process cannot be forked when it has ended.
    """
    if os.environ.get("RANK", "0") != "0":
        return run_program(name, arguments, is_module)
    watch = Watch(options)
    found: list[int] = []

    def audit() -> None:
        watch.stop()
        with progress() as on_progress:
            report = watch.audit(on_progress)
        if report.subjects:
            found.append(end(report))
            return
        seen = "none of the custom functions that were called can be audited"
        unseen = "no custom function was called (calls inside torch.compile are not seen)"
        sys.stderr.write(f"pullback: {seen if watch.has_calls else unseen}\n")
        found.append(_NOTHING_AUDITED)

    def early() -> None:
        try:
            audit()
        except PullbackError as error:  # the program goes on
            sys.stderr.write(f"pullback: {error}\n")

    restore = _after(steps, early) if steps else None
    watch.start()
    try:
        status = run_program(name, arguments, is_module)
    finally:
        watch.stop()
        if restore:
            restore()
    if not found:
        sys.stdout.flush()
        audit()
    return status or found[0]


def _after(steps: int, do: Callable[[], None]) -> Callable[[], None]:
    """Run a callback once, at the end of a backward pass; return a function that cancels it."""
    plain, left = torch.autograd.backward, steps

    def backward(*args: object, **kwargs: object) -> None:
        nonlocal left
        plain(*args, **kwargs)  # type: ignore[arg-type]
        left -= 1
        if left == 0:
            do()

    def restore() -> None:
        if torch.autograd.backward is backward:
            torch.autograd.backward = plain

    torch.autograd.backward = backward
    return restore
