"""The console on standard output, and progress on standard error.

Progress is a bar on a terminal, and otherwise a line every ten seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from pullback.check.events import Progress

_EVERY = 10.0
"""Seconds between two lines of progress."""


def output_console() -> Console:
    """Return a console on standard output; unlike rich's own, it raises BrokenPipeError if the reader has gone."""
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return PipeConsole(highlight=False)


@contextmanager
def progress(activity: str, unit: str = "", is_quiet: bool = False) -> Iterator[Progress]:
    """Show the progress of a block of code.

    Args:
        activity: the verb to show, e.g. "auditing".
        unit: unit of the count, e.g. "functions".
        is_quiet: show nothing.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if is_quiet:
        yield lambda done, total, doing="": None
    elif console.is_terminal:
        with _bar(activity, console) as show:
            yield show
    else:
        yield _Lines(activity, unit)


@contextmanager
def _bar(activity: str, console: Console) -> Iterator[Progress]:
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    from pullback.report.text import clean_line

    last = TextColumn("{task.fields[doing]}", table_column=Column(no_wrap=True, overflow="ellipsis"))
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), last]
    # No refresh thread: this process forks, and a fork with threads can deadlock.
    with Bar(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task(activity, total=None, doing="")

        def show(done: int, total: int, doing: str = "") -> None:
            shown = escape(clean_line(doing))
            bar.update(task, completed=done, total=total or None, doing=shown, refresh=True)

        yield show


class _Lines:
    """Progress as a line on standard error every ten seconds."""

    def __init__(self, activity: str, unit: str) -> None:
        self._activity, self._unit = activity, unit
        self._next = time.monotonic() + _EVERY

    def __call__(self, done: int, total: int, doing: str = "") -> None:
        if time.monotonic() < self._next:
            return
        from pullback.report.text import clean_line

        self._next = time.monotonic() + _EVERY
        counted = f": {done} of {total} {self._unit}".rstrip() if total else ""
        click.echo(f"pullback: {self._activity}{counted}{', ' * bool(doing)}{clean_line(doing)}", err=True)
