"""The ball arithmetic that the oracle rests on: `flint.arb`, an optional package, and its working precision."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from pullback.errors import RunnerError

try:
    import flint
except ImportError:
    flint = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from flint import arb

Ball: TypeAlias = "arb"

_lock = threading.RLock()


def ball_type() -> type[Ball]:
    """Return the class of balls.

    Raises:
        RunnerError: if python-flint is not installed.
    """
    if flint is None:
        raise RunnerError(
            "exact values are found in ball arithmetic by python-flint, which is not installed: "
            "pip install 'pullback[numerics]'."
        )
    return flint.arb


def precision() -> int:
    """Return the working precision, in bits."""
    return int(flint.ctx.prec)


@contextmanager
def working_precision() -> Iterator[Callable[[int], None]]:
    """Yield the function that sets the precision of ball arithmetic, in bits; restore the precision at the end.

    The precision is one number for the whole process, so one thread at a time is let in.

    Raises:
        RunnerError: if python-flint is not installed.
    """
    ball_type()
    with _lock:
        before = flint.ctx.prec
        try:
            yield _set
        finally:
            flint.ctx.prec = before


def _set(bits: int) -> None:
    flint.ctx.prec = bits
