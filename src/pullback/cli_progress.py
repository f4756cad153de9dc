"""How far a command is, on standard error: a bar on a terminal, and elsewhere a line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from pullback.check.events import Progress

_EVERY = 10.0
"""Seconds between two lines."""


@contextmanager
def progress(what: str, unit: str = "", is_quiet: bool = False) -> Iterator[Progress]:
    """Show progress while it lasts.

    Args:
        what: the current activity, e.g. "auditing".
        unit: of the count, e.g. "functions".
        is_quiet: show nothing.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if is_quiet:
        yield lambda done, total, doing="": None
    elif console.is_terminal:
        with _bar(what, console) as show:
            yield show
    else:
        yield _Lines(what, unit)


@contextmanager
def _bar(what: str, console: Console) -> Iterator[Progress]:
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    from pullback.report.clean import clean_line

    last = TextColumn("{task.fields[doing]}", table_column=Column(no_wrap=True, overflow="ellipsis"))
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), last]
    # No separate thread, since this process forks.
    with Bar(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task(what, total=None, doing="")

        def show(done: int, total: int, doing: str = "") -> None:
            said = escape(clean_line(doing))
            bar.update(task, completed=done, total=total or None, doing=said, refresh=True)

        yield show


class _Lines:
    """Writes a line on standard error every ten seconds."""

    def __init__(self, what: str, unit: str) -> None:
        self._what, self._unit = what, unit
        self._next = time.monotonic() + _EVERY

    def __call__(self, done: int, total: int, doing: str = "") -> None:
        if time.monotonic() < self._next:
            return
        import click

        from pullback.report.clean import clean_line

        self._next = time.monotonic() + _EVERY
        counted = f": {done} of {total} {self._unit}".rstrip() if total else ""
        click.echo(f"pullback: {self._what}{counted}{', ' * bool(doing)}{clean_line(doing)}", err=True)
