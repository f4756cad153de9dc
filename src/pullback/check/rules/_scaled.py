"""Findings of the rules about accuracy for functions that mix elements: float32 against a float64 run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pullback.check.derivative.agreement import show
from pullback.check.numeric.scaled import Beside, Scaled, first_bad, spread
from pullback.check.rules._shown import literals
from pullback.check.trial import standard_cotangents
from pullback.report.model import Evidence, Finding, Severity

if TYPE_CHECKING:
    from pullback.check.state import Audit

_EVERY_DAY, _NOW_AND_THEN = 100.0, 1e4
_HALF = 2.0**-12
_MOST_OF_16_BITS = 8.0
"""Units in the last place of a tensor's largest element."""
_ALL = 0.25
"""The share of the largest element beyond which an error leaves nothing of it."""
_INPUT = 16.0
"""Errors below this multiple of the effect of one input ulp in float32 are attributed to input rounding."""


def nonfinite_when_scaled(audit: Audit) -> Finding | None:
    """Return the least change of the example from which on something is spuriously not finite."""
    trial = next((trial for trial in audit.numbers.scaled if _nonfinite(trial) is not None), None)
    if trial is None:
        return None
    trial = first_bad(audit.subject, audit.base, trial, lambda there: _nonfinite(there) is not None)
    beside = _nonfinite(trial)
    assert beside is not None
    if trial.dtype.itemsize == 2:
        return _finding(audit, "spurious-nonfinite", "warning" if trial.amount == 1 else "info", trial, beside)
    underflows = trial.amount < 1 and beside.size == 0  # in float64, too, which is then no reference
    nan = bool(beside.got.isnan().any()) and not underflows
    severity: Severity = "info" if trial.largest > _NOW_AND_THEN else "warning"
    return _finding(
        audit, "spurious-nonfinite", "error" if nan and trial.largest <= _EVERY_DAY else severity, trial, beside
    )


def _nonfinite(trial: Scaled) -> Beside | None:
    """Return a tensor that is not finite, though dtype and value are in range; in 16 bits, if float32 inside is."""
    judged = [beside for beside in trial.tensors if beside.is_within_range]
    values = [beside for beside in judged if beside.label == "value"]
    return next((b for b in judged if values and not _is_finite(b.got) and _is_finite(b.inside)), None)


def _is_finite(x: torch.Tensor | None) -> bool:
    return x is None or bool(torch.isfinite(x).all())


def lost_when_scaled(audit: Audit, rule: str, zero: bool) -> Finding | None:
    """Return the change of the example at which most is lost of a tensor: an element that became 0, or another."""
    trials = [trial for trial in audit.numbers.scaled if trial.dtype == torch.float32]
    usual = [beside.size for beside in trials[0].tensors] if trials else []
    found: tuple[float, Scaled, Beside] | None = None
    for trial in trials:
        if len(trial.tensors) != len(usual) or trial.largest > _NOW_AND_THEN:
            continue
        for k, beside in enumerate(trial.tensors):
            if not beside.is_within_range or not _is_finite(beside.got):
                continue
            error = beside.error(usual[k])
            is_zero = float(beside.got.flatten()[beside.worst]) == 0
            if error <= _HALF or is_zero != zero or (found is not None and error <= found[0]):
                continue
            if beside.error(0.0) > _INPUT * spread(audit.subject, trial, k, beside.label):
                found = error, trial, beside
    return None if found is None else _finding(audit, rule, "warning", found[1], found[2])


def lost_in_16_bits(audit: Audit) -> Finding | None:
    """Return the tensor that loses most in 16 bits, on the example or on larger numbers, and would not in float32."""
    candidates = (
        (beside.error(0.0) / torch.finfo(trial.dtype).eps, trial, beside)
        for trial in audit.numbers.scaled
        if trial.dtype.itemsize == 2 and (trial.amount == 1 or trial.largest <= _EVERY_DAY)
        for beside in trial.tensors
        if beside.is_within_range and _is_finite(beside.got) and beside.error_inside <= torch.finfo(trial.dtype).eps
    )
    error, trial, beside = max(candidates, key=lambda found: found[0], default=(0.0, None, None))
    if trial is None or beside is None or error <= _MOST_OF_16_BITS:
        return None
    is_lost = trial.amount == 1 and beside.error(0.0) > _ALL
    return _finding(audit, "lost-accuracy", "warning" if is_lost else "info", trial, beside)


def _finding(audit: Audit, rule: str, severity: Severity, trial: Scaled, beside: Beside) -> Finding:
    k, dtype = beside.worst, str(trial.dtype).removeprefix("torch.")
    got, right = float(beside.got.flatten()[k]), float(beside.right.flatten()[k])
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(k), beside.got.shape))
    at = f" at {list(index)}" if index else ""
    large = f", with {trial.label}, the largest {show(trial.largest)}" if trial.amount not in (0.0, 1.0) else ""
    says = f"{show(right)} in a float64 run of the same function"
    if beside.inside is not None:
        says += f", and {show(float(beside.inside.flatten()[k]))} in a float32 run"
    return audit.finding(
        rule,
        severity,
        "unstable",
        f"the {beside.label}{at} is {show(got)} and should be {says}{large} ({dtype})",
        case=trial.case,
        evidence=Evidence(right, got, worst_index=index or None, where=beside.label, dtype=dtype),
        tail=_lines(audit, trial, beside, k, says),
        hint="subtract the maximum before exp, the mean before squares, and scale before norms"
        if beside.inside is None
        else "compute in float32 inside: x.float() first, .to(x.dtype) last",
    )


def _lines(audit: Audit, trial: Scaled, beside: Beside, k: int, says: str) -> list[str]:
    if beside.label == "value":
        values = (b for b in trial.tensors if b.label == "value")
        number = next(i for i, value in enumerate(values) if value is beside)
        return [
            audit.floating_outs,
            f"print('the value is', outs[{number}].flatten()[{k}].item(), 'and should be', {says!r})",
        ]
    run = audit.base_run
    cotangents = [g.to(trial.dtype) for g in standard_cotangents(run.roots, run.differentiable)]
    order = next(o for o, p in enumerate(trial.case.wrt) if beside.label == f"gradient of {trial.case.names[p]}")
    return [
        audit.outs,
        f"g = torch.autograd.grad(outs, inputs, {literals(cotangents)}, allow_unused=True)[{order}]",
        f"print('the gradient is', g.flatten()[{k}].item(), 'and should be', {says!r})",
    ]
