"""spurious-nonfinite (PB301): value or gradient is NaN or infinite where the right number is neither.

## What it finds
For a function that computes element by element: value and gradient in float32 at some 3000 points of the whole
range (every binary order of magnitude, both zeros, the thresholds where `exp` overflows and underflows), each
beside what it should be. If the forward is a formula of PyTorch's pointwise ops, that is the exact value of
formula and derivative, from ball arithmetic (`pip install 'pullback[numerics]'`); else a float64 run of the same
function, where that is finite and stays steady when its inputs are moved by a few units in their last place. The
finding says which, and where the trouble begins, bisected to the last bit.

## Why it hurts
`exp(88.8)` is infinite in float32, `inf / inf` is NaN, and one NaN in a batch makes every parameter NaN at the next
step. It comes late, in long runs, when some activation grows.

## Limits
An `error` is a NaN at numbers between 0.01 and 100 in magnitude, which people pass. A NaN at 0 alone, and whatever
is not finite up to 10 000 (and down to 1e-8), is a warning; beyond, within a factor of 16 of the largest number,
and where the next number of float32 has another value altogether (`sin(exp(x))`), an info. Where the formula itself
has no finite value (`log(-1)`, the slope of `sqrt` at 0) nothing is said; where it has a hole with a limit, such as
`sin(x) / x` at 0, the limit counts. NaN through a branch that `where` does not select is PB304's.

A function that mixes elements (a softmax, a norm) is run on its example multiplied by powers of ten from 0.0001 to
10 000 and moved by 100 and 1000, beside a float64 run on the same numbers, where that is finite and steady; its
gravity goes by the largest number among the inputs. In bfloat16 and float16 it is run on the example, a warning, and
on ten and a hundred times that, an info; there the same function in float32 has to be finite, too.

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
    from pullback.check.state import Audit

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
    grave = severity_of(point, math.isnan(spot.got), spot.expected)
    return accuracy_finding(
        audit,
        "PB301",
        "info" if _is_any_number(sweeper, point, k) else grave,
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


RULE = Rule(__doc__, runtime=_run, shrinks=False, late=True)
