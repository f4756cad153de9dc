"""Faults that are known and not mended, here or in PyTorch: trials that show them are passed over."""

from collections.abc import Callable, Sequence

from tests.adversary.agree import Trial
from tests.adversary.judge import Wrong

KNOWN: list[Callable[[Trial, Sequence[Wrong]], bool]] = [
    # the layout of a gradient of an op with a relaxation, of an input that is not contiguous
    lambda trial, wrong: trial.making == "relaxed" and all("gradient" in w.label and _is_layout(w) for w in wrong),
    # that of a result of an op with a rule, which has memory of its own where the formula returns an input
    lambda trial, wrong: trial.making == "ruled" and all(map(_is_layout, wrong)),
]


def _is_layout(wrong: Wrong) -> bool:
    return wrong.what.startswith("stride is")


def is_known(trial: Trial, wrong: Sequence[Wrong]) -> bool:
    """Whether all that is wrong is of a known kind."""
    return any(known(trial, wrong) for known in KNOWN)
