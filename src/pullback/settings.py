"""What is set for all ops of this process."""

from __future__ import annotations

from typing import Literal

Backend = Literal["auto", "native", "inductor", "eager"]

_backend: list[Backend | None] = [None]


def backend() -> Backend:
    """Return the backend of ops that do not name their own."""
    return _backend[0] or "auto"


def set_backend(name: Backend | None) -> None:
    """Choose it; `None` for what holds where nothing is chosen."""
    _backend[0] = name


def chosen() -> Backend | None:
    """Return what was chosen, if anything was."""
    return _backend[0]
