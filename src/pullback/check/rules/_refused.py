"""A function that raises on a variant of its example: by mistake, or by a deliberate check."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

from pullback.check.trial import Raised
from pullback.report.model import Severity


def is_deliberate(error: Raised) -> bool:
    """Whether it was raised by a `raise` or an `assert` of the audited code, not by an operation in it."""
    frames = traceback.extract_tb(error.error.__traceback__)
    last = frames[-1] if frames else None
    is_torchs = last is None or Path(last.filename).is_relative_to(Path(torch.__file__).parent)
    return last is not None and not is_torchs and (last.line or "").startswith(("raise", "assert"))


def severity_of(error: Raised) -> Severity:
    """Return "info" for an error by which a forward refuses an argument, or an index that no longer fits."""
    if isinstance(error.error, IndexError):
        return "info" if "out of bounds" in str(error.error) else "warning"
    refuses = isinstance(error.error, ValueError | TypeError | NotImplementedError | AssertionError)
    return "info" if refuses or is_deliberate(error) else "warning"
