"""masked-nan (PB304): the gradient is NaN because of a branch that is not selected.

## What it finds
Points at which the value is finite and correct, and the gradient is NaN or infinite although its exact value is finite.
The usual cause is a branch of `torch.where` that is *not* selected there and is infinite or undefined, or has such a
derivative: its cotangent is 0, and 0 · ∞ is NaN. The other cause is a backward that multiplies a mask by a non-finite
number: the gradient is then NaN in float64 too, at inputs between 0.01 and 100. The exact value is computed as in
PB301, and the finding names the branch. If the forward cannot be traced as a formula, the rule reports a gradient that
is NaN in float64 too, at a finite value whose numeric derivative is finite.

## Why it hurts
The forward looks safe, and its values are correct. But the mask that was to avoid a NaN brings it back in the backward,
and from there into every parameter.

## Limits
NaN at inputs between 0.01 and 100 in magnitude is an error, at 0 alone and up to 10 000 a warning, and beyond that an
info. PB101 reports the same NaN if its examples reach it; this rule says which branch causes it. The rule examines
pointwise functions in float32.

## Bad
```python
def root(x):
    return torch.where(x > 0, torch.sqrt(x), x)


example = root
```

## Good
```python
def root(x):
    positive = torch.where(x > 0, x, 1)
    return torch.where(x > 0, torch.sqrt(positive), x)


example = root
```
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from pullback.check.derivative.agreement import show
from pullback.check.numeric.accuracy import Sweep
from pullback.check.numeric.elementwise import Columns, onset, plainest, single, slope_at
from pullback.check.numeric.sweep import Sweeper, SweptQuantity, masked, traps
from pullback.check.rules._accuracy import (
    Spot,
    accuracy_finding,
    gradient_lines,
    name_of,
    onset_text,
    point_text,
    severity_of,
)
from pullback.check.rules._rule import Rule
from pullback.report.model import Evidence, Finding
from pullback.stable.formats import Mask, format_of

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_DTYPE = torch.float32
_TRIED = 4
_HINT = (
    "replace the input where the branch is not selected, before it reaches the branch: "
    "safe = torch.where(mask, x, 1), then torch.where(mask, f(safe), other)"
)


def _run(audit: Audit) -> Iterator[Finding]:
    sweeper, sweep = audit.numbers.sweeper, audit.numbers.sweep(_DTYPE)
    if sweeper is None or sweep is None:
        return
    for k, slope in enumerate(sweep.quantities):
        if not slope.by:
            continue
        if slope.exact:
            bad = _bad(sweeper, sweep.at, sweep.quantities, k)
            if bad.any():
                yield _finding(audit, sweeper, sweep, k, bad)
        else:
            yield from _in_any_precision(audit, sweeper, sweep, k)


def _bad(sweeper: Sweeper, at: Columns, quantities: list[SweptQuantity], k: int) -> Mask:
    """Return where the gradient is not finite, the value is right, and a mask is why."""
    value, slope = quantities[0], quantities[k]
    bad = (slope.errors.nan | slope.errors.inf) & slope.within_range(_DTYPE)
    bad = bad & value.within_range(_DTYPE) & ~value.errors.spurious
    return masked(sweeper, at, slope, k, _DTYPE, bad)


def _finding(audit: Audit, sweeper: Sweeper, sweep: Sweep, k: int, bad: Mask) -> Finding:
    index, point = plainest(sweep.at, bad)
    slope = sweep.quantities[k]
    begins = onset(lambda at: _bad(sweeper, at, sweeper.measure(_DTYPE, at), k), format_of(_DTYPE), point)
    branches = [] if slope.formula is None else traps(slope.formula, slope.by, single(point), _DTYPE)
    why = ": in float64 too, so that the backward multiplies a mask by what is not finite, or divides 0 by 0"
    if branches:
        why = f": the branch {branches[0][0]}, which is not selected there, or its derivative, is not finite"
    return accuracy_finding(
        audit,
        "PB304",
        severity_of(point, bool(slope.computed[index].isnan())),
        Spot(sweeper, sweep, _DTYPE, k, index),
        why + onset_text(begins, point),
        _HINT,
    )


def _in_any_precision(audit: Audit, sweeper: Sweeper, sweep: Sweep, k: int) -> Iterator[Finding]:
    """Yield findings without a trace: a NaN that more digits do not remove, at a point with a numeric derivative."""
    value, slope = sweep.quantities[0], sweep.quantities[k]
    nonzero = np.all([x != 0 for x in sweep.at.values()], axis=0)
    candidates = slope.computed.isnan().numpy() & np.isfinite(value.truth.high) & slope.errors.undecided & nonzero
    for _ in range(_TRIED):
        if not candidates.any():
            return
        index, point = plainest(sweep.at, candidates)
        candidates[index] = False
        expected = slope_at(sweeper.function, slope.by, point)
        if expected is None or not np.isnan(float(sweeper.function.run(torch.float64, single(point))[k][0])):
            continue
        derivative = expected.nearest(0.0)
        right = f"its numeric derivative is {show(derivative)} ± {show(expected.bar)}"
        case = sweeper.function.case(_DTYPE, single(point))
        yield audit.finding(
            "PB304",
            severity_of(point, nan=True),
            "unstable",
            f"the {slope.label} is nan, in {name_of(_DTYPE)} and in float64, while the value is finite and {right}, at "
            f"{point_text(point)}",
            case=case,
            evidence=Evidence(derivative, math.nan, expected.bar, where=slope.label, dtype=name_of(_DTYPE)),
            tail=gradient_lines(case, slope.by, right),
            hint=_HINT,
        )
        return


RULE = Rule(__doc__, runtime=_run, shrinks=False, late=True)
