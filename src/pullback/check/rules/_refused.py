"""A forward that raises on an input of another size: by mistake, or by a deliberate check."""

from __future__ import annotations

from pullback.check.trial import Raised
from pullback.report.model import Severity


def severity_of(error: Raised) -> Severity:
    """Return "info" for an error by which a forward itself refuses an argument, else "warning"."""
    refuses = isinstance(error.error, ValueError | TypeError | NotImplementedError | AssertionError)
    return "info" if refuses else "warning"
