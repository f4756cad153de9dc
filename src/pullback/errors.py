"""Errors that Pullback raises, each with the expectation, the actual state and the remedy; and reports of its own bugs.

An op that can run without a part of Pullback that failed does so, with a warning.
"""

from __future__ import annotations

import os
import traceback
import warnings
from pathlib import Path

_OURS = str(Path(__file__).parent) + os.sep
_FORMULAS = str(Path(__file__).parent / "catalog") + os.sep
"""Formulas written as a user would write them, whose errors are not bugs of Pullback."""
_MISTAKES = (ArithmeticError, AssertionError, AttributeError, KeyError, NameError)
"""Errors that indicate a bug: neither PyTorch nor Python raises them to reject an argument."""
_reported: set[str] = set()


class PullbackError(Exception):
    """Base of every error that Pullback raises deliberately."""


class TargetError(PullbackError):
    """The target of an audit cannot be found, read or understood."""


class OptionError(PullbackError):
    """An option has an invalid value."""


class RunnerError(PullbackError):
    """The request cannot run in this process or on this machine, for any target."""


class FormulaError(PullbackError):
    """A formula has no derivative, or its relaxation does not match it."""


class DerivativeError(PullbackError):
    """A given derivative is invalid here: it would be lost, or violates its contract."""


class NotSoundError(AssertionError):
    """An audit in a test found an error, or could not run; the message has the findings."""


class FaultError(Exception):
    """A bug in Pullback, raised if PULLBACK_STRICT is 1."""


def is_from_ours(error: Exception) -> bool:
    """Whether an error was raised by a line of Pullback, or by a C function that it called."""
    *_, (frame, _) = [(None, 0), *traceback.walk_tb(error.__traceback__)]
    file = "" if frame is None else frame.f_code.co_filename
    return file.startswith(_OURS) and not file.startswith(_FORMULAS) and not isinstance(error, PullbackError)


def is_fault(error: Exception) -> bool:
    """Whether an error is a bug in Pullback, neither raised by a formula nor by PyTorch to reject an argument."""
    return isinstance(error, FaultError) or (is_from_ours(error) and isinstance(error, _MISTAKES))


def report_internal_error(error: Exception, name: str = "") -> None:
    """Report an error if it is a bug in Pullback; ignore others."""
    if is_fault(error):
        report(error, name)


def report(error: Exception, name: str = "") -> None:
    """Warn of a bug in Pullback that an op can work around, once per op; raise it if PULLBACK_STRICT is 1.

    Args:
        error: the exception.
        name: the op; by default, the line of its formula.
    """
    if isinstance(error, FaultError):
        raise error
    if os.environ.get("PULLBACK_STRICT") == "1":
        raise FaultError(f"{type(error).__name__}: {error}") from error
    *_, last = frames = traceback.extract_tb(error.__traceback__)
    users = [f for f in frames if not f.filename.startswith(_OURS) and "torch" not in Path(f.filename).parts]
    name = name or (f"{users[-1].filename}:{users[-1].lineno}" if users else "a formula")
    if name not in _reported:
        _reported.add(name)
        what = f"{type(error).__name__}: {error}, in {last.filename}:{last.lineno}"
        warnings.warn(
            f"{name}: Pullback has failed ({what}), and falls back to PyTorch: results are right, but may be slow. "
            "Please report this message with the formula. With PULLBACK_STRICT=1 the error is raised.",
            stacklevel=3,
        )
