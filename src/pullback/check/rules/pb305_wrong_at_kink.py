"""wrong-at-kink (PB305): the gradient at a kink lies outside the one-sided derivatives of the forward.

## What it finds
For a pointwise function, the rule finds every point between -16 and 16 where the gradient jumps, and bisects it to two
neighbouring float64 numbers. There it compares the gradient with the one-sided derivatives of the forward, computed
numerically from either side, with error bars. At a kink every value between the two is correct: either end, the
average, or 0.5. The gradient is wrong if it lies outside by more than ten error bars, on two sequences of step sizes.
The comparison also finds a jump of the gradient where the forward has no kink, such as a mask with a slightly wrong
bound.

## Why it hurts
`(x <= c) * a + (x >= c) * b` is correct everywhere except at `c`, where it is the sum of both. Inputs that were
clipped, quantised or initialised to `c` are exactly there. A mask whose bound differs from the forward's is wrong on a
narrow interval that random tests seldom hit.

## Limits
It is an error if the gradient is also wrong beside the jump, and a warning if it is wrong only at the point itself.
Mistakes that PB101 reports at zeros, ones and whole numbers are not repeated. Nothing is reported for a backward that
is not a derivative on purpose (straight-through, surrogate: see [where there is no
derivative](../policy/nondifferentiable.md)); for NaN, which PB301 and PB304 cover; and where the forward has a jump, a
cusp or a vertical slope. Jumps below a thousandth of the largest gradient are ignored, and at most twelve points are
examined.

## Bad
```python
class TwoSlopes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.maximum(x - 0.3, 2 * (x - 0.3))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ((x <= 0.3) * 1.0 + (x >= 0.3) * 2.0)
```

## Good
```python
class TwoSlopes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.maximum(x - 0.3, 2 * (x - 0.3))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.where(x > 0.3, 2.0, 1.0)
```
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from pullback.check.derivative.agreement import show
from pullback.check.numeric.elementwise import Elementwise, NumericSlope, jumps, single, slope_at
from pullback.check.rules._accuracy import gradient_lines, point_text
from pullback.check.rules._rule import Rule
from pullback.report.model import Evidence, Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_LADDERS = (2.0**-10, 2.0**-16)
_BESIDE = 1e-9
"""Relative distance at which a point is beside the jump, rather than on it."""


def _run(audit: Audit) -> Iterator[Finding]:
    sweeper = audit.numbers.sweeper
    if sweeper is None or _is_reported(audit) or audit.any_intent is not None:
        return
    if any(t.dtype != torch.float64 for t in audit.base.tensors):
        return  # which its forward refuses
    function = sweeper.function
    for by in function.names:
        beside = {name: function.example(name) for name in function.names}
        for below, above in jumps(function, by, beside):
            audit.events.beat()
            if audit.subject.is_interpreted and not audit.has_time():  # each slope takes many runs
                return
            if (found := _finding(audit, function, by, beside, below, above)) is not None:
                yield found
                break


def _is_reported(audit: Audit) -> bool:
    """Whether PB101 has reported a wrong gradient: then this adds nothing."""
    return bool(audit.running(("PB101",))) and any(
        r.wrong for r in (audit.base_result, *audit.variants) if r is not None
    )


def _finding(
    audit: Audit, function: Elementwise, by: str, beside: dict[str, float], below: float, above: float
) -> Finding | None:
    aside = _BESIDE * max(1.0, abs(below))
    strip = [_wrong_at(function, by, {**beside, by: x}) for x in (below - aside, above + aside)]
    spot = [_wrong_at(function, by, {**beside, by: x}) for x in (below, above)]
    wrong = next((w for w in (*strip, *spot) if w is not None), None)
    if wrong is None:
        return None
    x, got, slope = wrong
    point = {**beside, by: x}
    right = f"is {show(slope.nearest(got))} ± {show(slope.bar)}"
    if slope.kink:
        right = f"is anything between {show(slope.low)} and {show(slope.high)} (± {show(slope.bar)})"
    return audit.finding(
        "PB305",
        "error" if any(strip) else "warning",
        "wrong",
        f"at {point_text(point)} the gradient of {by} is {show(got)}, where it jumps; the derivative of the forward "
        f"{right}",
        case=(case := function.case(torch.float64, single(point))),
        evidence=Evidence(slope.nearest(got), got, slope.bar, where=f"gradient of {by}", dtype="float64"),
        tail=gradient_lines(case, by, f"the derivative of the forward {right}"),
        hint="let exactly one mask hold at the kink, with the same bound in forward and backward",
    )


def _wrong_at(function: Elementwise, by: str, point: dict[str, float]) -> tuple[float, float, NumericSlope] | None:
    """Return the point, the gradient and the right one, if the gradient is wrong there on every ladder of steps."""
    got = float(function.run(torch.float64, single(point))[1 + function.names.index(by)][0])
    slopes = [slope_at(function, by, point, step) for step in _LADDERS]
    sure = [slope for slope in slopes if slope is not None and not slope.accepts(got)]
    return (point[by], got, sure[0]) if math.isfinite(got) and len(sure) == len(slopes) else None


RULE = Rule(__doc__, runtime=_run, blames="backward", shrinks=False, late=True)
