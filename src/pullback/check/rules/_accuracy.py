"""What the rules about accuracy share: the point that is shown, how grave it is, and its lines of a reproduction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.check.cases.repro import variables
from pullback.check.derivative.agreement import show
from pullback.check.numeric.onset import Onset, is_ordinary, single
from pullback.check.numeric.sweep import Measured, Sweeper
from pullback.report.model import Evidence, Finding, Severity, Verdict

if TYPE_CHECKING:
    from pullback.check.state import Audit


_PASSED, _ORDINARY = 100.0, 1e4
"""Magnitudes (and their reciprocals) up to which numbers are passed every day, and up to which now and then."""


def severity_of(point: dict[str, float], nan: bool) -> Severity:
    """Return how grave it is that something is not finite at a point."""
    if nan and all(point.values()) and is_ordinary(point, _PASSED):
        return "error"
    return "warning" if is_ordinary(point, _ORDINARY) else "info"


def spelled_point(point: dict[str, float]) -> str:
    """Write a point: "x = 88.8, y = 2"."""
    return ", ".join(f"{name} = {show(value)}" for name, value in point.items())


def onset_text(found: Onset | None, point: dict[str, float]) -> str:
    """Say where it begins, for the end of a message; nothing where that is the point itself or not known."""
    if found is None or found.point == point:
        return ""
    if len(point) > 1:
        return f"; on the line through 0 it begins at {spelled_point(found.point)}"
    ((name, x),) = found.point.items()
    side = ("from {} on" if x > 0 else "from {} down") if found.upwards else "from {} towards 0"
    return f"; so it is {side.format(f'{name} = {show(x)}')}"


def truth_text(quantity: Measured, value: float) -> str:
    """Say what the value should be, and how that is known."""
    return f"exactly {show(value)}" if quantity.exact else f"{show(value)} in a float64 run of the same function"


def accuracy_finding(
    audit: Audit,
    rule: str,
    severity: Severity,
    sweeper: Sweeper,
    dtype: torch.dtype,
    quantity: int,
    point: dict[str, float],
    tell: str,
    hint: str,
    verdict: Verdict = "unstable",
) -> Finding:
    """Build a finding about one quantity at one point; `tell` is given what is computed and what is right."""
    measured = sweeper.measure(dtype, single(point))[quantity]
    got, expected = float(measured.computed[0]), float(measured.truth.high[0])
    what = f"at {spelled_point(point)} ({name_of(dtype)}) the {measured.label} is {show(got)}, "
    case = sweeper.function.case(dtype, single(point))
    return audit.finding(
        rule,
        severity,
        verdict,
        f"{what}and {truth_text(measured, expected)}{tell}",
        case=case,
        evidence=Evidence(expected=expected, got=got, where=measured.label, dtype=name_of(dtype)),
        tail=_shown(sweeper, case.tensors, quantity, variables(case), measured, expected),
        hint=hint,
    )


def _shown(
    sweeper: Sweeper, tensors: list[Tensor], quantity: int, names: dict[int, str], measured: Measured, expected: float
) -> list[str]:
    says = truth_text(measured, expected)
    if not quantity:
        return [f"print('the value is', out.flatten()[0].item(), 'and', {says!r})"]
    base = sweeper.function.base
    (position,) = (p for p in base.wrt if base.names[p] == measured.by)
    return [
        f"g = torch.autograd.grad(out.sum(), {names[position]})[0]",
        f"print('the gradient is', g.flatten()[0].item(), 'and', {says!r})",
    ]


def name_of(dtype: torch.dtype) -> str:
    """Write a dtype without "torch."."""
    return str(dtype).removeprefix("torch.")
