"""lost-accuracy (PB303): value or gradient has fewer correct digits than its dtype holds.

## What it finds
The error of the value and the gradient of a pointwise function in units in the last place (ulp): the computed result at
a floating-point input against the exact result at *that same input*. It is measured in float32, bfloat16 and float16,
and also in float64 if the exact value is known. The points and the reference are those of PB301; the finding shows the
worst point.

- float32: errors beyond 64 ulp (six bits) are reported. It is a warning if the error exceeds 1/4096 of the value or of
  its usual size, which is half of the digits. It is an error if a quarter or more of a custom function's gradient is
  noise, at inputs from 1e-4 to 100.
- bfloat16 and float16: errors beyond 8 ulp are an info, if the same function in float32, on the same inputs and rounded
  at the end, stays within 1 ulp. The finding gives both numbers.
- float64: it is a warning if half of the digits are lost at most points, since some intermediate is then float32.

## Why it hurts
Differences of nearly equal numbers lose digits. `exp(x) - 1` near 0 has none left, and parameters that depend on it
train on noise. `gradcheck` tests float64 at ordinary inputs, and does not notice.

## Limits
Errors that rounding of the input alone explains are not reported: an error counts only beyond four times the effect of
one ulp of the input. So `sin(1e4)` is compared with the exact sine of 1e4, results near a root only up to the effect of
that ulp, and `sin(1e30)` not at all. Subnormal numbers are skipped, and an unsteady float64 run is not used as a
reference. Nothing is reported for a function whose structure shows that it is not a derivative on purpose, such as a
quantiser, whose values jump.

For a function that mixes elements (a softmax, a norm), whole tensors are compared with a float64 run, on the variants
of the example that PB301 tries. It is a warning if half of the digits of the largest element, or of its usual size, are
lost, and if the error exceeds 16 times the effect of one float32 ulp of the inputs.

## Bad
```python
class Expm1Ratio(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (torch.exp(x) - 1) / x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (torch.exp(x) * (x - 1) + 1) / x**2
```

## Good
```python
class Logistic(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sigmoid(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.sigmoid(x) * torch.sigmoid(-x)
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from pullback.check.numeric.accuracy import Sweep
from pullback.check.numeric.elementwise import Columns
from pullback.check.numeric.sweep import STEP, Sweeper, SweptQuantity, common, weight
from pullback.check.rules._accuracy import (
    Spot,
    accuracy_finding,
    lost_in_16_bits,
    lost_when_scaled,
    name_of,
    nothing_is_left,
)
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding, Severity
from pullback.stable.formats import Floats, Mask, format_of
from pullback.stable.measure import errors

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_MOST = {torch.float32: 64.0, torch.bfloat16: 8.0, torch.float16: 8.0, torch.float64: 64.0}
"""Ulp beyond which an error is looked at."""
_HALF = {torch.float32: 2.0**-12, torch.float64: 2.0**-26}
"""Error that loses half of the digits, relative to the value or its usual magnitude."""
_SINGLE = 2.0**-32
"""A usual error in float64 that only float32 on the way explains, not a difference that cancels somewhere."""
_FIRST_DIGIT = 0.1
_NARROW = (torch.bfloat16, torch.float16)
_INSIDE = 1.0
_INPUT = 4.0
"""Errors below this multiple of the effect of one input ulp are attributed to input rounding."""
_LOST: dict[Severity, str] = {
    "error": ", no digit is right",
    "warning": ", half of its digits or more",
    "info": "",
}
_HINT = (
    "rewrite the difference that cancels: expm1 and log1p near 0, sigmoid(-x) for 1 - sigmoid(x), "
    "2 * sin(x / 2)**2 for 1 - cos(x)"
)


def _run(audit: Audit) -> Iterator[Finding]:
    if audit.intent is not None and audit.intent.sign != "worded":
        return
    sweeper = audit.numbers.sweeper
    if sweeper is None:
        if (mixing := lost_when_scaled(audit, "PB303", zero=False)) is not None:
            yield mixing
        if (narrow := lost_in_16_bits(audit)) is not None:
            yield narrow
        return
    for dtype in (torch.float64, torch.float32):
        sweep = audit.numbers.sweep(dtype)
        for k in range(len(sweep.quantities) if sweep is not None else 0):
            assert sweep is not None
            yield from _in_wide(audit, sweeper, sweep, dtype, k)
    reported: set[int] = set()
    for dtype in _NARROW:
        sweep = audit.numbers.sweep(dtype)
        for k in range(len(sweep.quantities) if sweep is not None else 0):
            assert sweep is not None
            if k not in reported and (found := _in_narrow(audit, sweeper, sweep, dtype, k)) is not None:
                reported.add(k)
                yield found


def _in_wide(audit: Audit, sweeper: Sweeper, sweep: Sweep, dtype: torch.dtype, k: int) -> Iterator[Finding]:
    """Yield the finding in float32 or float64: at the point with the greatest weighted error, else the most ulp."""
    quantity = sweep.quantities[k]
    weights = weight(quantity, sweep.at)
    if dtype == torch.float64 and not (_is_sure(sweeper, quantity) and np.median(weights[common(sweep.at)]) > _SINGLE):
        return
    heavy = _beyond_input(sweeper, sweep, dtype, k, _candidates(quantity, dtype) & (weights >= _HALF[dtype]))
    severe = nothing_is_left(audit, quantity, sweep.at, np.where(heavy, weights, 0.0))
    if severe.any():
        severe = severe & _is_right_in_float64(sweeper, sweep, k)
    if heavy.any():
        index = int(np.argmax(np.where(severe if severe.any() else heavy, weights, 0.0)))
        is_severe = bool(severe.any()) and dtype == torch.float32
        yield _finding(audit, sweeper, sweep, dtype, k, index, "error" if is_severe else "warning")
    elif dtype == torch.float32:
        light = _beyond_input(sweeper, sweep, dtype, k, _candidates(quantity, dtype))
        if light.any():
            index = int(np.argmax(np.where(light, quantity.errors.ulp, 0.0)))
            yield _finding(audit, sweeper, sweep, dtype, k, index, "info")


def _is_right_in_float64(sweeper: Sweeper, sweep: Sweep, k: int) -> Mask:
    """Return the points at which the same code in float64 has right digits: else it computes something else there."""
    true = sweep.quantities[k].truth.high
    computed = sweeper.function.run(torch.float64, sweep.at)[k].numpy()
    with np.errstate(invalid="ignore", over="ignore"):
        right: Mask = np.abs(computed - true) <= _FIRST_DIGIT * np.abs(true)
    return right


def _is_sure(sweeper: Sweeper, quantity: SweptQuantity) -> bool:
    """Whether the exact value has the digits of float64: a trace has numbers that are passed as float32 has them."""
    return quantity.exact and not sweeper.function.holds_numbers


def _candidates(quantity: SweptQuantity, dtype: torch.dtype) -> Mask:
    found = quantity.errors
    return found.stated & ~found.subnormal & (found.ulp > _MOST[dtype]) & quantity.within_range(dtype)


def _beyond_input(sweeper: Sweeper, sweep: Sweep, dtype: torch.dtype, k: int, among: Mask) -> Mask:
    """Return those of some points at which the error exceeds the effect of input rounding."""
    where = np.flatnonzero(among)
    if not len(where):
        return among
    spread = sweeper.spread(dtype, {name: x[where] for name, x in sweep.at.items()})[k]
    quantity = sweep.quantities[k]
    ulp: Floats = np.ldexp(1.0, format_of(dtype).ulp_exponent(quantity.truth.high[where]))
    beyond = np.zeros_like(among)
    with np.errstate(over="ignore"):
        larger = quantity.errors.ulp[where] > _MOST[dtype] + _INPUT * spread / ulp
        beyond[where] = larger & (spread <= STEP * np.abs(quantity.truth.high[where]))
    return beyond


def _finding(
    audit: Audit,
    sweeper: Sweeper,
    sweep: Sweep,
    dtype: torch.dtype,
    k: int,
    index: int,
    severity: Severity,
    more: str = "",
) -> Finding:
    ulp = sweep.quantities[k].errors.ulp[index]
    lost = f": off by {ulp:.2g} ulp" + _LOST[severity]
    hint = "an intermediate is float32: keep the dtype of the input" if dtype == torch.float64 else _HINT
    return accuracy_finding(
        audit,
        "PB303",
        severity,
        Spot(sweeper, sweep, dtype, k, index),
        lost + more,
        "compute in float32 inside: x.float() first, .to(x.dtype) last" if more else hint,
    )


def _in_narrow(audit: Audit, sweeper: Sweeper, sweep: Sweep, dtype: torch.dtype, k: int) -> Finding | None:
    """Return the finding in 16 bits that computing in float32 inside would remove."""
    quantity = sweep.quantities[k]
    bad = _beyond_input(sweeper, sweep, dtype, k, _candidates(quantity, dtype))
    if not bad.any():
        return None
    inside = _float32_inside(sweeper, sweep.at, dtype, quantity, k)
    bad = bad & (inside <= _INSIDE)
    if not bad.any():
        return None
    index = int(np.argmax(np.where(bad, quantity.errors.ulp, 0.0)))
    more = f"; computed in float32 inside and rounded to {name_of(dtype)} it would be off by {inside[index]:.2g}"
    return _finding(audit, sweeper, sweep, dtype, k, index, "info", more)


def _float32_inside(sweeper: Sweeper, at: Columns, dtype: torch.dtype, quantity: SweptQuantity, k: int) -> Floats:
    """Return the errors in ulp of 16 bits if the function computed in float32; infinite where it is spurious."""
    computed = sweeper.function.run(torch.float32, at)[k].to(dtype)
    found = errors(computed, quantity.truth)
    return np.where(found.stated, found.ulp, np.inf)


RULE = Rule(__doc__, runtime=_run, shrinks=False, late=True)
