"""Findings of the rules about accuracy: elementwise functions over a whole range, others against a float64 run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import torch

from pullback.check.case import Case
from pullback.check.cases.repro import bind, call_text, variables
from pullback.check.derivative.agreement import show
from pullback.check.numeric.accuracy import Sweep
from pullback.check.numeric.elementwise import ORDINARY, PASSED, Columns, Onset, is_within
from pullback.check.numeric.sweep import Sweeper, SweptQuantity
from pullback.check.rules._kernels import rounding
from pullback.report.model import Evidence, Finding, Severity, Verdict
from pullback.stable.formats import Floats, Mask

if TYPE_CHECKING:
    from pullback.check.audit import Audit
from typing import TYPE_CHECKING

from pullback.check.numeric.scaled import Scaled, ScaledResult, first_bad, spread
from pullback.check.trial import forward, standard_cotangents

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_NEAR_LARGEST = 2.0**124
"""Next to the end of float32's range: `cosh(88.8)` is infinite in PyTorch, and 89.5 rightly so."""
_EVERYDAY = (1e-4, PASSED[1])
"""Magnitudes within a typical batch: one in ten thousand normal numbers is smaller."""
_ALL = 0.25
"""Error relative to a gradient, or to its usual size, beyond which no digit is left."""
_VECTOR = 64
"""Number of elements that fills the vectors of any processor."""


def severity_of(point: dict[str, float], nan: bool, expected: float = 0.0) -> Severity:
    """Severity of a non-finite result at a point where the true value fits float32."""
    if abs(expected) > _NEAR_LARGEST:
        return "info"
    everyday = is_within(point, PASSED)
    if not all(point.values()):  # a single point, or a line: 0 · exp(256) is for few
        return "warning" if everyday else "info"
    if nan and everyday:
        return "error"
    return "warning" if is_within(point, ORDINARY) else "info"


def nothing_is_left(audit: Audit, quantity: SweptQuantity, at: Columns, weights: Floats) -> Mask:
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


def point_text(point: dict[str, float]) -> str:
    """Write a point: "x = 88.8, y = 2"."""
    return ", ".join(f"{name} = {show(value)}" for name, value in point.items())


def onset_text(found: Onset | None, point: dict[str, float]) -> str:
    """A clause on where the fault begins, for the end of a message; empty if it is the point itself, or unknown."""
    if found is None or found.point == point:
        return ""
    line = "" if len(point) == 1 else "on the line through 0 "
    towards = "" if found.upwards else ", towards 0"
    return f"; {line}it begins at {point_text(found.point)}{towards}"


def truth_text(quantity: SweptQuantity, value: float) -> str:
    """Return the true value as text, with its source."""
    return f"exactly {show(value)}" if quantity.exact else f"{show(value)} in a float64 run of the same function"


@dataclass(frozen=True, slots=True)
class Spot:
    """One quantity at one point of a sweep.

    Attributes:
        sweeper: made the sweep.
        sweep: the results.
        dtype: dtype of the sweep.
        quantity: index of the sweep's quantity.
        index: index of the point.
    """

    sweeper: Sweeper
    sweep: Sweep
    dtype: torch.dtype
    quantity: int
    index: int

    @property
    def measured(self) -> SweptQuantity:
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
            alone = float(self.sweeper.function.run(self.dtype, at)[self.quantity][0])
            if alone == self.got or (math.isnan(alone) and math.isnan(self.got)):
                break
        return self.sweeper.function.case(self.dtype, at)


def accuracy_finding(
    audit: Audit, rule: str, severity: Severity, spot: Spot, remark: str, hint: str, verdict: Verdict = "unstable"
) -> Finding:
    """Build a finding about one quantity at one point; `tell` continues the message after both values."""
    measured = spot.measured
    says = truth_text(measured, spot.expected)
    case = spot.case()
    return audit.finding(
        rule,
        severity,
        verdict,
        f"the {measured.label} is {show(spot.got)} and should be {says}, at {point_text(spot.point)} "
        f"({name_of(spot.dtype)}){remark}",
        case=case,
        evidence=Evidence(spot.expected, spot.got, where=measured.label, dtype=name_of(spot.dtype)),
        tail=_as_written(audit, case, _shown(case, measured.by, says)),
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


def _as_written(audit: Audit, case: Case, lines: list[str]) -> list[str]:
    """Return lines at the end of a reproduction; those that make the call again as its interpreted kernels round."""
    if not audit.subject.is_interpreted:
        return lines
    return rounding([f"out = fn({call_text(case)})", *lines])


def name_of(dtype: torch.dtype) -> str:
    """Write a dtype without "torch."."""
    return str(dtype).removeprefix("torch.")


_EVERY_DAY, _NOW_AND_THEN = 100.0, 1e4
_LARGE = 2.0**100
"""A result that grows so fast overflows soon anyway."""
_HALF = 2.0**-12
_MOST_OF_16_BITS = 8.0
"""Units in the last place of a tensor's largest element."""
_TOTAL_LOSS = 0.25
"""Error relative to the largest element beyond which no digit is left."""
_INPUT = 16.0
"""Errors below this multiple of the effect of one input ulp in float32 are attributed to input rounding."""


def nonfinite_when_scaled(audit: Audit) -> Finding | None:
    """The least scaling of the example from which on a result is spuriously not finite."""
    trial = next((trial for trial in audit.numbers.scaled if _nonfinite(trial) is not None), None)
    if trial is None:
        return None
    trial = first_bad(audit.subject, trial, lambda there: _nonfinite(there) is not None)
    result = _nonfinite(trial)
    assert result is not None
    if trial.dtype.itemsize == 2:
        return _scaled_finding(audit, "spurious-nonfinite", "warning" if trial.amount == 1 else "info", trial, result)
    underflows = trial.amount < 1 and result.size == 0  # in float64, too, which is then no reference
    nan = bool(result.got.isnan().any()) and not underflows
    severity: Severity = "info" if trial.largest > _NOW_AND_THEN or result.size > _LARGE else "warning"
    return _scaled_finding(
        audit,
        "spurious-nonfinite",
        "error" if nan and trial.largest <= _EVERY_DAY and result.size <= _LARGE else severity,
        trial,
        result,
    )


def _nonfinite(trial: Scaled) -> ScaledResult | None:
    """Return a tensor that is not finite, though dtype and value are in range; in 16 bits, if float32 inside is."""
    judged = [result for result in trial.tensors if result.is_within_range]
    values = [result for result in judged if result.label == "value"]
    return next((b for b in judged if values and not _is_finite(b.got) and _is_finite(b.inside)), None)


def _is_finite(x: torch.Tensor | None) -> bool:
    return x is None or bool(torch.isfinite(x).all())


def lost_when_scaled(audit: Audit, rule: str, zero: bool) -> Finding | None:
    """Return the change of the example at which most is lost of a tensor: an element that became 0, or another."""
    if audit.subject.is_interpreted:  # PB907 knows how its kernels add and multiply
        return None
    trials = [trial for trial in audit.numbers.scaled if trial.dtype == torch.float32]
    usual = [result.size for result in trials[0].tensors] if trials else []
    found: tuple[float, Scaled, ScaledResult] | None = None
    for trial in trials:
        if len(trial.tensors) != len(usual) or trial.largest > _NOW_AND_THEN:
            continue
        for k, result in enumerate(trial.tensors):
            if not result.is_within_range or not _is_finite(result.got):
                continue
            error = result.error(usual[k])
            is_zero = float(result.got.flatten()[result.worst]) == 0
            if error <= _HALF or is_zero != zero or (found is not None and error <= found[0]):
                continue
            if result.error(0.0) > _INPUT * spread(audit.subject, trial, k, result.label):
                found = error, trial, result
    return None if found is None else _scaled_finding(audit, rule, "warning", found[1], found[2])


def lost_in_16_bits(audit: Audit) -> Finding | None:
    """Return the tensor that loses most in 16 bits, on the example or on larger numbers, and would not in float32."""
    candidates = (
        (result.error(0.0) / torch.finfo(trial.dtype).eps, trial, result)
        for trial in audit.numbers.scaled
        if trial.dtype.itemsize == 2 and (trial.amount == 1 or trial.largest <= _EVERY_DAY)
        for result in trial.tensors
        if result.is_within_range and _is_finite(result.got) and result.error_inside <= torch.finfo(trial.dtype).eps
    )
    error, trial, result = max(candidates, key=lambda found: found[0], default=(0.0, None, None))
    if trial is None or result is None or error <= _MOST_OF_16_BITS:
        return None
    is_lost = trial.amount == 1 and result.error(0.0) > _TOTAL_LOSS
    return _scaled_finding(audit, "lost-accuracy", "warning" if is_lost else "info", trial, result)


def _scaled_finding(audit: Audit, rule: str, severity: Severity, trial: Scaled, result: ScaledResult) -> Finding:
    k, dtype = result.worst, str(trial.dtype).removeprefix("torch.")
    got, right = float(result.got.flatten()[k]), float(result.right.flatten()[k])
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(k), result.got.shape))
    at = f" at {list(index)}" if index else ""
    large = f", with {trial.label}, the largest {show(trial.largest)}" if trial.amount not in (0.0, 1.0) else ""
    says = f"{show(right)} in a float64 run of the same function"
    if result.inside is not None:
        says += f", and {show(float(result.inside.flatten()[k]))} in a float32 run"
    return audit.finding(
        rule,
        severity,
        "unstable",
        f"the {result.label}{at} is {show(got)} and should be {says}{large} ({dtype})",
        case=trial.case,
        evidence=Evidence(right, got, worst_index=index or None, where=result.label, dtype=dtype),
        tail=_as_written(audit, trial.case, _scaled_lines(audit, trial, result, k, says)),
        hint="subtract the maximum before exp, the mean before squares, and scale before norms"
        if result.inside is None
        else "compute in float32 inside: x.float() first, .to(x.dtype) last",
    )


def _scaled_lines(audit: Audit, trial: Scaled, result: ScaledResult, k: int, says: str) -> list[str]:
    if result.label == "value":
        values = (b for b in trial.tensors if b.label == "value")
        number = next(i for i, value in enumerate(values) if value is result)
        return [
            audit.floating_outs,
            f"print('the value is', outs[{number}].flatten()[{k}].item(), 'and should be', {says!r})",
        ]
    run = forward(audit.subject, trial.case)
    cotangents = [g.to(trial.dtype) for g in standard_cotangents(run.roots, run.differentiable)]
    input_index = next(o for o, p in enumerate(trial.case.wrt) if result.label == f"gradient of {trial.case.names[p]}")
    return [
        audit.outs,
        bind("g", cotangents),
        f"g = torch.autograd.grad(outs, inputs, g, allow_unused=True)[{input_index}]",
        f"print('the gradient is', g.flatten()[{k}].item(), 'and should be', {says!r})",
    ]
