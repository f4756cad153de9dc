"""Streams and events by the names of PyTorch: a kernel has run when its launch returns."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch


class Stream:
    """A stream on which everything is done when a launch returns."""

    cuda_stream = 0
    stream_id = 0
    device_index = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take a device and a priority, which do not matter."""

    def query(self) -> bool:
        """Whether all is done."""
        return True

    def synchronize(self) -> None:
        """Wait for nothing."""

    def wait_event(self, event: Event) -> None:
        """Wait for nothing."""

    def wait_stream(self, stream: Stream) -> None:
        """Wait for nothing."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event."""
        event = event or Event()
        event.record(self)
        return event


class Event:
    """An event, which knows when it was recorded."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take options, which do not matter."""
        self._at = time.perf_counter()

    def record(self, stream: Stream | None = None) -> None:
        """Record the time."""
        self._at = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds until another event."""
        return 1000 * (end._at - self._at)

    def query(self) -> bool:
        """Whether all is done."""
        return True

    def synchronize(self) -> None:
        """Wait for nothing."""

    def wait(self, stream: Stream | None = None) -> None:
        """Wait for nothing."""


_NAMES: dict[str, Any] = {
    "Stream": Stream, "Event": Event, "stream": contextlib.nullcontext, "current_stream": Stream,
    "default_stream": Stream, "set_stream": lambda stream: None, "is_current_stream_capturing": lambda: False,
}  # fmt: skip


def replace_streams() -> None:
    """Put these in the place of those of PyTorch, which need a GPU."""
    for name, value in _NAMES.items():
        setattr(torch.cuda, name, value)
