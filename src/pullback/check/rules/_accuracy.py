"""Shared parts of the rules about accuracy: the point to show, its severity, and its lines of a reproduction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import torch

from pullback.check.case import Case
from pullback.check.cases.repro import variables
from pullback.check.derivative.agreement import show
from pullback.check.numeric.accuracy import Sweep
from pullback.check.numeric.elementwise import ORDINARY, PASSED, Columns, Onset, is_within
from pullback.check.numeric.sweep import Quantity, Sweeper
from pullback.report.model import Evidence, Finding, Severity, Verdict
from pullback.stable.formats import Floats, Mask

if TYPE_CHECKING:
    from pullback.check.state import Audit


_NEAR_LARGEST = 2.0**124
"""Next to the end of float32's range: `cosh(88.8)` is infinite in PyTorch, and 89.5 rightly so."""
_EVERYDAY = (1e-4, PASSED[1])
"""Magnitudes that a batch has: one in ten thousand normal numbers is smaller."""
_ALL = 0.25
"""The share of a gradient, or of its usual size, beyond which an error leaves nothing of it."""
_VECTOR = 64
"""Elements that fill every processor's vectors."""


def severity_of(point: dict[str, float], nan: bool, expected: float = 0.0) -> Severity:
    """Return how grave it is that something is not finite at a point, where a number of float32 is expected."""
    if abs(expected) > _NEAR_LARGEST:
        return "info"
    everyday = is_within(point, PASSED)
    if not all(point.values()):  # a single point, or a line: 0 · exp(256) is for few
        return "warning" if everyday else "info"
    if nan and everyday:
        return "error"
    return "warning" if is_within(point, ORDINARY) else "info"


def nothing_is_left(audit: Audit, quantity: Quantity, at: Columns, weights: Floats) -> Mask:
    """Return the points that people pass at which a custom function's gradient has no right digit in float32.

    Numbers that are apart by less than one in ten thousand, as those around `a = b`, are no such points.
    """
    if not quantity.by or audit.is_native:
        return np.zeros(len(weights), dtype=bool)
    least, most = _EVERYDAY
    numbers = [np.abs(x) for x in at.values()]
    apart = [np.abs(x - y) >= least * np.maximum(np.abs(x), np.abs(y)) for x, y in combinations(at.values(), 2)]
    passed = [(x >= least) & (x <= most) for x in numbers]
    found: Mask = np.all([weights >= _ALL, *passed, *apart], axis=0)
    return found


def spelled_point(point: dict[str, float]) -> str:
    """Write a point: "x = 88.8, y = 2"."""
    return ", ".join(f"{name} = {show(value)}" for name, value in point.items())


def onset_text(found: Onset | None, point: dict[str, float]) -> str:
    """Return a clause on where it begins, for the end of a message; empty if that is the point itself, or unknown."""
    if found is None or found.point == point:
        return ""
    line = "" if len(point) == 1 else "on the line through 0 "
    towards = "" if found.upwards else ", towards 0"
    return f"; {line}it begins at {spelled_point(found.point)}{towards}"


def truth_text(quantity: Quantity, value: float) -> str:
    """Return the true value as text, with its source."""
    return f"exactly {show(value)}" if quantity.exact else f"{show(value)} in a float64 run of the same function"


@dataclass(frozen=True, slots=True)
class Spot:
    """One quantity at one point of a sweep.

    Attributes:
        sweeper: made the sweep.
        sweep: the results.
        dtype: of the sweep.
        quantity: index of the sweep's quantity.
        index: index of the point.
    """

    sweeper: Sweeper
    sweep: Sweep
    dtype: torch.dtype
    quantity: int
    index: int

    @property
    def measured(self) -> Quantity:
        """The quantity, at all points."""
        return self.sweep.quantities[self.quantity]

    @property
    def point(self) -> dict[str, float]:
        """The point."""
        return {name: float(x[self.index]) for name, x in self.sweep.at.items()}

    @property
    def got(self) -> float:
        """The computed value."""
        return float(self.measured.computed[self.index])

    @property
    def expected(self) -> float:
        """The true value."""
        return float(self.measured.truth.high[self.index])

    def case(self) -> Case:
        """Return the smallest example found that shows it.

        That is one element, or as many as vector instructions need: PyTorch's kernels compute a remainder with
        others, and not always to the same bits.
        """
        for copies in (1, _VECTOR):
            at = {name: np.full(copies, x) for name, x in self.point.items()}
            again = float(self.sweeper.function.run(self.dtype, at)[self.quantity][0])
            if again == self.got or (math.isnan(again) and math.isnan(self.got)):
                break
        return self.sweeper.function.case(self.dtype, at)


def accuracy_finding(
    audit: Audit, rule: str, severity: Severity, spot: Spot, tell: str, hint: str, verdict: Verdict = "unstable"
) -> Finding:
    """Build a finding about one quantity at one point; `tell` continues the message after both values."""
    measured = spot.measured
    says = truth_text(measured, spot.expected)
    case = spot.case()
    return audit.finding(
        rule,
        severity,
        verdict,
        f"the {measured.label} is {show(spot.got)} and should be {says}, at {spelled_point(spot.point)} "
        f"({name_of(spot.dtype)}){tell}",
        case=case,
        evidence=Evidence(spot.expected, spot.got, where=measured.label, dtype=name_of(spot.dtype)),
        tail=_shown(case, measured.by, says),
        hint=hint,
    )


def _shown(case: Case, by: str, says: str) -> list[str]:
    if not by:
        return [f"print('the value is', out.flatten()[0].item(), 'and should be', {says!r})"]
    return gradient_lines(case, by, says)


def gradient_lines(case: Case, by: str, says: str) -> list[str]:
    """Return lines that print the first element of a gradient, and the true one."""
    position = next(p for p in case.wrt if case.names[p] == by)
    return [
        f"g = torch.autograd.grad(out.sum(), {variables(case)[position]})[0]",
        f"print('the gradient is', g.flatten()[0].item(), 'and should be', {says!r})",
    ]


def name_of(dtype: torch.dtype) -> str:
    """Write a dtype without "torch."."""
    return str(dtype).removeprefix("torch.")
