"""Faults that are known and not mended: trials that show them are passed over. Empty is what it should be."""

from collections.abc import Callable, Sequence

from tests.adversary.agree import Trial
from tests.adversary.judge import Wrong

KNOWN: list[Callable[[Trial, Sequence[Wrong]], bool]] = []


def is_known(trial: Trial, wrong: Sequence[Wrong]) -> bool:
    """Whether all that is wrong is of a known kind."""
    return any(known(trial, wrong) for known in KNOWN)
