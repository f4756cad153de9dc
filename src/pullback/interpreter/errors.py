"""Errors of kernels that do not run."""

from __future__ import annotations

from pullback.errors import PullbackError


class KernelError(PullbackError, RuntimeError):
    """A kernel does what Triton does not allow."""


class UnsupportedError(KernelError):
    """A kernel does what this interpreter cannot do."""
