"""spurious-nonfinite (PB301): value or gradient is NaN or infinite where the exact result is finite.

## What it finds
For a pointwise function, the value and the gradient in float32 are compared with a reference at some 3000 points of the
whole range: every binary order of magnitude, both zeros, and the thresholds where `exp` overflows and underflows. If
the forward is a formula of PyTorch's pointwise ops, the reference is the exact value of the formula and its derivative,
from ball arithmetic (`pip install 'pullback[numerics]'`). Otherwise it is a float64 run of the same function, where
that is finite and stays steady when its inputs move by a few ulp. The finding says which reference was used, and where
the failure begins, bisected to the last bit.

## Why it hurts
`exp(88.8)` is infinite in float32, `inf / inf` is NaN, and one NaN in a batch makes every parameter NaN at the next
step. This happens late in long runs, when some activation grows.

## Limits
NaN at ordinary inputs, between 0.01 and 100 in magnitude, is an error. NaN at 0 alone, and any non-finite result at
inputs up to 10 000 (and down to 1e-8), is a warning. It is an info at larger or smaller inputs, within a factor of 16
of the largest number, and where neighbouring float32 inputs have unrelated values (`sin(exp(x))`). Nothing is reported
where the formula itself has no finite value (`log(-1)`, the slope of `sqrt` at 0). If the formula has a hole with a
limit, such as `sin(x) / x` at 0, the limit is the reference. NaN from a branch that `where` does not select is PB304.

A function that mixes elements (a softmax, a norm) runs on its example multiplied by powers of ten from 0.0001 to 10 000
and shifted by 100 and 1000. The reference is a float64 run on the same inputs, where that is finite and steady. The
severity depends on the largest input. In bfloat16 and float16 the function runs on the example (a warning) and on ten
and a hundred times the example (an info); there the same function in float32 must be finite too.

Triton kernels that are interpreted run as they are written, against a run in float64: on the example, on a hundred
times it, and with each input of one sign alone 10 and 30 times as large, since such inputs may be gates, which kernels
add up before `exp`. Numbers from 0 to 1, and rows of length 1, stay: a kernel may rely on them.

## Bad
```python
class Softplus(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log(1 + torch.exp(x))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        e = torch.exp(x)
        return g * e / (1 + e)
```

## Good
```python
class Softplus(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.sigmoid(x)
```
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from pullback.check.numeric.accuracy import Sweep
from pullback.check.numeric.elementwise import Columns, columns, onset, plainest
from pullback.check.numeric.sweep import Sweeper, SweptQuantity, masked
from pullback.check.rules._accuracy import Spot, accuracy_finding, nonfinite_when_scaled, onset_text, severity_of
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding
from pullback.stable.formats import Mask, format_of

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_DTYPE = torch.float32


def _run(audit: Audit) -> Iterator[Finding]:
    sweeper, sweep = audit.numbers.sweeper, audit.numbers.sweep(_DTYPE)
    if sweeper is None or sweep is None:
        if (mixing := nonfinite_when_scaled(audit)) is not None:
            yield mixing
        return
    for k in range(len(sweep.quantities)):
        bad = _bad(sweeper, sweep.at, sweep.quantities, k)
        if bad.any():
            yield _finding(audit, sweeper, sweep, k, bad)


def _bad(sweeper: Sweeper, at: Columns, quantities: Sequence[SweptQuantity], k: int) -> Mask:
    """Return where a quantity is spuriously not finite, with a value in range, and no mask is why."""
    found, value = quantities[k], quantities[0]
    bad = (found.errors.nan | found.errors.inf) & value.within_range(_DTYPE) & found.within_range(_DTYPE)
    return bad & ~masked(sweeper, at, found, k, _DTYPE, bad)


def _finding(audit: Audit, sweeper: Sweeper, sweep: Sweep, k: int, bad: Mask) -> Finding:
    index, point = plainest(sweep.at, bad)
    spot = Spot(sweeper, sweep, _DTYPE, k, index)
    begins = onset(lambda at: _bad(sweeper, at, sweeper.measure(_DTYPE, at), k), format_of(_DTYPE), point)
    severe = severity_of(point, math.isnan(spot.got), spot.expected)
    return accuracy_finding(
        audit,
        "PB301",
        "info" if _is_any_number(sweeper, point, k) else severe,
        spot,
        onset_text(begins, point),
        "an intermediate overflows, or is 0/0: rewrite it so that exp is of -abs(x) alone, or use log1p, expm1, "
        "softplus, sigmoid; `pullback.function` of the forward finds such a form",
    )


def _is_any_number(sweeper: Sweeper, point: dict[str, float], k: int) -> bool:
    """Whether the right number changes altogether from a point to the next float32 number: sin(exp(88)) is chance."""
    if not all(point.values()):
        return False
    beside = {name: float(np.nextafter(np.float32(x), np.float32(np.inf))) for name, x in point.items()}
    here, there = sweeper.measure(_DTYPE, columns([point, beside]))[k].truth.high
    return bool(abs(here - there) > _ALL * max(abs(here), abs(there)))


_ALL = 0.1
"""Relative change of the true value between adjacent float32 inputs beyond which it is ill-conditioned."""


RULE = Rule(__doc__, runtime=_run, shrinks=False, late=True, of_kernels=True)
