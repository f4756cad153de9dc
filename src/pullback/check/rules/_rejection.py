"""A function that raises on a variant of its example: by mistake, or by a check, deliberate or of a size."""

from __future__ import annotations

import re

from pullback.check.trial import Raised
from pullback.report.model import Severity


def severity_of(error: Raised) -> Severity:
    """Severity of an error: "info" if a forward rejects an argument, or an index no longer fits."""
    if isinstance(error.error, IndexError):
        return "info" if "out of bounds" in str(error.error) else "warning"
    if _TOO_SMALL.search(str(error.error)):
        return "info"
    refuses = isinstance(error.error, ValueError | TypeError | NotImplementedError | AssertionError)
    return "info" if refuses or error.is_deliberate else "warning"


_TOO_SMALL = re.compile(r"must be non-negative|negative dimension|can't be greater than actual input size")
"""Errors of PyTorch for an input that is smaller than a window, a kernel or a difference of some order."""
