"""gradient-in-wrong-slot (PB106): the gradients of two inputs are swapped.

## What it finds
A wrong gradient (as in PB101) that becomes correct when it is exchanged with the gradient of another input of the
same shape.

## Why it hurts
Each input trains on the other's gradient. If the shapes agree, nothing raises.

## Limits
Only inputs of equal shape can be swapped unnoticed. Other swaps raise, or are reported as PB104.

## Bad
```python
class ScaledDecay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * torch.exp(-y)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return -g * x * torch.exp(-y), g * torch.exp(-y)
```

## Good
```python
class ScaledDecay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * torch.exp(-y)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * torch.exp(-y), -g * x * torch.exp(-y)
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.derivative.diagnosis import cause, swapped_with
from pullback.check.rules._reproduction import gradient_and_quotient
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    result = audit.base_result
    if result is None or audit.intent is not None:
        return
    for comparison in result.wrong:
        if cause(audit, result, comparison) != "swapped gradients":
            continue
        other = swapped_with(audit, result, comparison)
        name = audit.names[comparison.input_index]
        yield audit.finding(
            "PB106",
            "error",
            "wrong",
            f"the gradient of {name} is returned in the place of {audit.names[other or 0]}",
            case=result.case,
            evidence=audit.evidence(result, comparison),
            tail=gradient_and_quotient(audit, result, comparison),
            hint="return the gradients in the order of forward's arguments",
        )
        return


RULE = Rule(__doc__, runtime=_run, blames="backward", column="eager", explains="swapped gradients")
