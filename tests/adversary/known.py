"""Faults that are known and not mended, here or in PyTorch: trials that show them are passed over."""

import re
from collections.abc import Callable, Sequence

from tests.adversary.agree import Trial
from tests.adversary.judge import Wrong
from tests.adversary.program import Program

KNOWN: list[Callable[[Trial, Sequence[Wrong]], bool]] = [
    # the layout of a gradient of an op with a relaxation, of an input that is not contiguous
    lambda trial, wrong: trial.making == "relaxed" and all("gradient" in w.label and _is_layout(w) for w in wrong),
    # that of a result of an op with a rule, which has memory of its own where the formula returns an input
    lambda trial, wrong: trial.making == "ruled" and all(map(_is_layout, wrong)),
    # NaN in an activation of two sides: PyTorch's vectors take one of its slopes, what fills no vector the other
    lambda trial, wrong: _has_sides_for_nan(trial.program) and all(map(_is_slope_of_nan, wrong)),
]


def _has_sides_for_nan(program: Program) -> bool:
    return "/ torch.randint" in program.inputs and bool(
        re.search("relu6|hardtanh|softshrink|hardshrink", program.formula)
    )


def _is_layout(wrong: Wrong) -> bool:
    return wrong.what.startswith("stride is")


def _is_slope_of_nan(wrong: Wrong) -> bool:
    return "gradient" in wrong.label and wrong.what.startswith(("0 at", "-0 at", "nan at"))


def is_known(trial: Trial, wrong: Sequence[Wrong]) -> bool:
    """Whether all that is wrong is of a known kind."""
    return any(known(trial, wrong) for known in KNOWN)
