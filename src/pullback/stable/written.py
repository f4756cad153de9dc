"""Whether ops are their formulas as written: while a formula that calls them is read for its meaning."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Local(threading.local):
    reading = False


_local = _Local()


@contextmanager
def as_written() -> Iterator[None]:
    """Have every op of this thread compute its formula as written, and use no stable forms."""
    before = _local.reading
    _local.reading = True
    try:
        yield
    finally:
        _local.reading = before


def is_as_written() -> bool:
    """Whether ops of this thread compute their formulas as written."""
    return _local.reading
