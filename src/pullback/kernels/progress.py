"""A word on a terminal when something takes long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

AFTER = 2.0
"""Seconds."""


@contextmanager
def noticed(what: str) -> Iterator[None]:
    """Print a notice on standard error, if that is a terminal and the work takes more than two seconds."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    status = Console(stderr=True).status(f"{what} …")
    timer = threading.Timer(AFTER, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()
