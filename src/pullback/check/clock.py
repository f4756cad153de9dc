"""Budgets and limits are in seconds of processor time, so that a busy machine hardly shortens an audit.

At least a third of the wall-clock time counts: a process that only waits, for a lock or in a sleep, is ended as well.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

PATIENCE = 3.0
"""Seconds of wall-clock time that count as one of processor time, at least."""


def spent(elapsed: float, worked: float | None) -> float:
    """Return the part of a duration that counts, in seconds.

    Args:
        elapsed: its wall-clock time.
        worked: its processor time, on all threads; `None` where the system does not report it.
    """
    if worked is None:
        return elapsed
    return min(elapsed, max(worked, elapsed / PATIENCE))


class Stopwatch:
    """The seconds that count since it was made, of this process and the processes that it started and that ended."""

    def __init__(self) -> None:
        self._started, self._worked = time.monotonic(), _processor_time()

    def seconds(self) -> float:
        """Return the seconds spent."""
        return spent(time.monotonic() - self._started, _processor_time() - self._worked)


def _processor_time() -> float:
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


def processor_time_of(pid: int) -> float | None:
    """Return the processor time of a process and its ended children; `None` if the system does not report it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
