"""Whether a run can be repeated: the same values and gradients from the same random state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from torch import Tensor

from pullback.check.case import Case
from pullback.check.derivative.agreement import TensorDifference, difference
from pullback.check.subject import Subject
from pullback.check.trial import Raised, forward, standard_cotangents, vjp
from pullback.dtypes import has_derivative


@dataclass(frozen=True, slots=True)
class Parted:
    """Difference of two runs from the same state of PyTorch's and Python's generators.

    Attributes:
        what: "output" or "gradient".
        where: which one, and the two values.
        is_rounding: whether the difference is no larger than another order of the same operations would cause.
        by_numpy: whether they agree once NumPy's generator starts from the same state, too.
        adds_up: whether a third gradient is as far from the second as that is from the first.
    """

    what: str
    where: TensorDifference
    is_rounding: bool
    by_numpy: bool
    adds_up: bool


_Run = tuple[Sequence[Tensor | None], Sequence[Tensor | None] | None]
"""The floating outputs, and the gradients unless the backward raised."""


def parted(subject: Subject, case: Case) -> Parted | None:
    """Run forward and backward twice and return where the runs differ; `None` if they agree bit for bit."""
    try:
        runs = _once(subject, case), _once(subject, case)
        found = _differ(*runs)
        if found is None:
            return None
        adds_up = found[0] == "gradient" and _adds_up([gradients for _, gradients in (*runs, _once(subject, case))])
        state = numpy.random.get_state()
        by_numpy = _differ(_once(subject, case, 0), _once(subject, case, 0)) is None
        numpy.random.set_state(state)
    except Raised:
        return None
    return Parted(*found, by_numpy, adds_up)


def _adds_up(runs: Sequence[Sequence[Tensor | None] | None]) -> bool:
    """Whether each run's gradients differ from those before by the same amounts: sums over all calls."""
    first, second, third = ([g for g in run or () if g is not None] for run in runs)
    if not len(first) == len(second) == len(third):
        return False
    once, again = ([b - a for a, b in zip(x, y, strict=True)] for x, y in ((first, second), (second, third)))
    return difference(once, again) is None


def _differ(first: _Run, second: _Run) -> tuple[str, TensorDifference, bool] | None:
    for what, a, b in zip(("output", "gradient"), first, second, strict=True):
        if a is None or b is None or len(a) != len(b):
            return None
        where = difference(a, b, rounding=0.0)
        if where is not None:
            return what, where, difference(a, b) is None
    return None


def _once(subject: Subject, case: Case, numpy_seed: int | None = None) -> _Run:
    if numpy_seed is not None:
        numpy.random.seed(numpy_seed)
    run = forward(subject, case)
    values = [out.detach().clone() for out in run.outputs if has_derivative(out)]
    try:
        return values, vjp(run, standard_cotangents(run.roots))
    except Raised:  # another rule's matter
        return values, None
