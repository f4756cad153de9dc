"""Process-wide settings of all ops."""

from __future__ import annotations

from typing import Literal

Backend = Literal["auto", "native", "inductor", "eager"]

_backend: Backend | None = None


def backend() -> Backend:
    """Backend of ops that do not name their own."""
    return _backend or "auto"


def set_backend(name: Backend | None) -> None:
    """Set the backend; `None` restores the default."""
    global _backend
    _backend = name


def chosen() -> Backend | None:
    """Backend that was set; `None` if none was."""
    return _backend
