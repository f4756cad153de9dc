"""A function that raises on a variant of its example: by mistake, or by a deliberate check."""

from __future__ import annotations

from pullback.check.trial import Raised
from pullback.report.model import Severity


def severity_of(error: Raised) -> Severity:
    """Return "info" for an error by which a forward refuses an argument, or an index that no longer fits."""
    if isinstance(error.error, IndexError):
        return "info" if "out of bounds" in str(error.error) else "warning"
    refuses = isinstance(error.error, ValueError | TypeError | NotImplementedError | AssertionError)
    return "info" if refuses or error.is_deliberate else "warning"
