"""Settings for all ops of this process."""

from __future__ import annotations

from typing import Literal

Backend = Literal["auto", "native", "inductor", "eager"]

_backend: Backend | None = None


def backend() -> Backend:
    """Return the backend of ops that do not name their own."""
    return _backend or "auto"


def set_backend(name: Backend | None) -> None:
    """Choose the backend; `None` restores the default."""
    global _backend
    _backend = name


def chosen() -> Backend | None:
    """Return the chosen backend; `None` if none was chosen."""
    return _backend
