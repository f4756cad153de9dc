"""Faults that are known and not mended: trials that show them are passed over. Empty is what it should be."""

import re
from collections.abc import Callable, Sequence

from tests.adversary.agree import Trial
from tests.adversary.judge import Wrong

_REFUSED = re.compile("is a view and is being modified|input that has been returned as-is")
KNOWN: list[Callable[[Trial, Sequence[Wrong]], bool]] = [
    # an op with a rule that returns an input as it is: PyTorch refuses a write to the result, which a Function gives,
    # and to differentiate it under vmap
    lambda trial, wrong: trial.making == "ruled" and all(_REFUSED.search(w.what) for w in wrong),
]


def is_known(trial: Trial, wrong: Sequence[Wrong]) -> bool:
    """Whether all that is wrong is of a known kind."""
    return any(known(trial, wrong) for known in KNOWN)
