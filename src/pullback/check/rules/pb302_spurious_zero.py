"""spurious-zero (PB302): value or gradient is 0 where the exact result is not.

## What it finds
Value and gradient in float32 at the points of PB301, where the computed result is 0 and the reference is a normal
number. Either an intermediate product underflowed, or a sum absorbed the small term, as in `1 - cos(x)` near 0, `1 -
tanh(x)**2` above 9 and `log(1 + exp(x))` below -16.6. The finding shows the largest lost value, and where the loss
begins.

## Why it hurts
A zero is not just a small number: its `log` is infinite, 0 divided by it is NaN, and parameters that get it as a
gradient never train. Where the value should be 0.5, as for `(1 - cos(x)) / x**2`, it is simply wrong, and nothing
raises.

## Limits
It is a warning if the loss is significant: at least 1/4096 of the usual size of the value or gradient between 0.01 and
16, at inputs from 1e-8 to 10 000. It is an error if a quarter or more of a custom function's gradient is lost this way,
at inputs from 1e-4 to 100. Otherwise it is an info: PyTorch's own derivatives of `tanh` and `sigmoid` lose their tails
in the same way. Losses that rounding of the input alone explains, such as at a step or a kink, are not reported, and
neither are subnormal numbers. Functions that mix elements are run as in PB301, and only significant losses are
reported.

## Bad
```python
class Versine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (1 - torch.cos(x)) / x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (torch.sin(x) / x - (1 - torch.cos(x)) / x**2)
```

## Good
```python
class Versine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sinc(x / 2 / torch.pi) * torch.sin(x / 2)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        half = torch.sinc(x / 2 / torch.pi)
        return g * (torch.sinc(x / torch.pi) - half**2 / 2)
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from pullback.check.numeric.accuracy import Sweep
from pullback.check.numeric.elementwise import Columns, onset
from pullback.check.numeric.sweep import STEP, Sweeper, SweptQuantity, weight
from pullback.check.rules._accuracy import Spot, accuracy_finding, lost_when_scaled, nothing_is_left, onset_text
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding
from pullback.stable.formats import Mask, format_of

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_DTYPE = torch.float32
_WEIGHS = 2.0**-12


def _run(audit: Audit) -> Iterator[Finding]:
    sweeper, sweep = audit.numbers.sweeper, audit.numbers.sweep(_DTYPE)
    if sweeper is None or sweep is None:
        if (mixing := lost_when_scaled(audit, "PB302", zero=True)) is not None:
            yield mixing
        return
    for k, quantity in enumerate(sweep.quantities):
        bad = _bad(sweeper, sweep.at, k, quantity)
        if bad.any():
            yield _finding(audit, sweeper, sweep, k, bad)


def _bad(sweeper: Sweeper, at: Columns, k: int, found: SweptQuantity) -> Mask:
    """Return where a quantity, measured at some points, is spuriously 0."""
    bad = found.errors.zero & found.within_range(_DTYPE)
    where = np.flatnonzero(bad)
    if len(where):
        spread = sweeper.spread(_DTYPE, {name: x[where] for name, x in at.items()})[k]
        bad[where] = spread <= STEP * np.abs(found.truth.high[where])
    return bad


def _finding(audit: Audit, sweeper: Sweeper, sweep: Sweep, k: int, bad: Mask) -> Finding:
    weights = np.where(bad, weight(sweep.quantities[k], sweep.at), 0.0)
    lost = np.where(bad, np.abs(sweep.quantities[k].truth.high), 0.0)
    severe = nothing_is_left(audit, sweep.quantities[k], sweep.at, weights)
    if severe.any():
        weights = np.where(severe, weights, 0.0)
    index = int(np.argmax(weights if weights.any() else lost))
    spot = Spot(sweeper, sweep, _DTYPE, k, index)
    begins = onset(lambda at: _bad(sweeper, at, k, sweeper.measure(_DTYPE, at)[k]), format_of(_DTYPE), spot.point)
    return accuracy_finding(
        audit,
        "PB302",
        "error" if severe.any() else "warning" if weights[index] >= _WEIGHS else "info",
        spot,
        onset_text(begins, spot.point),
        "a sum or a product loses it: rewrite the difference (2 * sin(x / 2)**2 for 1 - cos(x), expm1, log1p, "
        "sigmoid(-x) for 1 - sigmoid(x)), or divide twice rather than by a square",
    )


RULE = Rule(__doc__, runtime=_run, shrinks=False, late=True)
