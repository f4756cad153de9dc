"""The error of a kernel that cannot be interpreted."""

from __future__ import annotations

from pullback.errors import PullbackError


class KernelError(PullbackError, RuntimeError):
    """A kernel does what Triton does not allow, or what this interpreter cannot do."""
