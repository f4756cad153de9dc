"""The errors that Pullback raises. Each states the expectation, the actual state and the remedy.

Faults of Pullback's own are reported here too: an op that can run without the failed part does, and warns.
"""

from __future__ import annotations

import os
import traceback
import warnings
from pathlib import Path

_OURS = str(Path(__file__).parent) + os.sep
_FORMULAS = str(Path(__file__).parent / "catalog") + os.sep
"""Formulas in the style of a user's, whose errors are not bugs."""
_MISTAKES = (ArithmeticError, AssertionError, AttributeError, KeyError, NameError)
"""Errors that mean a bug: neither PyTorch nor Python raises them to refuse an argument."""
_told: set[str] = set()


class PullbackError(Exception):
    """Base of every error raised on purpose by Pullback."""


class TargetError(PullbackError):
    """The target of an audit cannot be found, read or understood."""


class OptionError(PullbackError):
    """An option has a value that it cannot take."""


class RunnerError(PullbackError):
    """The request cannot run in this process or on this machine, whatever the target."""


class FormulaError(PullbackError):
    """A formula without a derivative, or a relaxation that does not match it."""


class DerivativeError(PullbackError):
    """A given derivative that is not valid here: it would be lost, or violates its contract."""


class NotSoundError(AssertionError):
    """An audit that a test asked for found an error, or could not be done; the message has the findings."""


class FaultError(Exception):
    """A mistake in Pullback itself, which is raised where PULLBACK_STRICT is 1."""


def is_from_ours(error: Exception) -> bool:
    """Whether a line of Pullback raised an error, or a function in C that it called."""
    *_, (frame, _) = [(None, 0), *traceback.walk_tb(error.__traceback__)]
    file = "" if frame is None else frame.f_code.co_filename
    return file.startswith(_OURS) and not file.startswith(_FORMULAS) and not isinstance(error, PullbackError)


def is_fault(error: Exception) -> bool:
    """Whether an error is a bug in Pullback: neither raised by a formula nor a refusal of PyTorch."""
    return isinstance(error, FaultError) or (is_from_ours(error) and isinstance(error, _MISTAKES))


def tell_mistake(error: Exception, name: str = "") -> None:
    """Report an error if it is a bug in Pullback; ignore others."""
    if is_fault(error):
        tell(error, name)


def tell(error: Exception, name: str = "") -> None:
    """Warn of a bug in Pullback that an op can work around, once per op; raise it if PULLBACK_STRICT is 1.

    Args:
        error: the exception.
        name: of the op; without, the place in its formula.
    """
    if isinstance(error, FaultError):
        raise error
    if os.environ.get("PULLBACK_STRICT") == "1":
        raise FaultError(f"{type(error).__name__}: {error}") from error
    *_, last = frames = traceback.extract_tb(error.__traceback__)
    users = [f for f in frames if not f.filename.startswith(_OURS) and "torch" not in Path(f.filename).parts]
    name = name or (f"{users[-1].filename}:{users[-1].lineno}" if users else "a formula")
    if name not in _told:
        _told.add(name)
        what = f"{type(error).__name__}: {error}, in {last.filename}:{last.lineno}"
        warnings.warn(
            f"{name}: Pullback has failed ({what}), and goes on by PyTorch's own means: results are right, and may be "
            "slow. Please report this message with the formula. With PULLBACK_STRICT=1 the error is raised.",
            stacklevel=3,
        )
