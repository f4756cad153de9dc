"""lost-saved-intermediate (PB404): the backward uses an intermediate of the forward, so its second derivative is wrong.

## What it finds
A silently wrong second derivative (as in PB401) of a Function that saves a tensor that is neither an input nor an
output. `forward` builds no graph, so double backward treats that tensor as a constant.

## Why it hurts
`gradcheck` passes, and the Hessian is wrong.

## Limits
Tensors in lists or objects on `ctx` are not recognised; the finding is then PB401. It is also PB401 if the backward is
decorated with `torch.no_grad()`, which is then the cause.

## Bad
```python
class ScaledDecay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        decay = torch.exp(-y)
        ctx.save_for_backward(x, decay)
        return x * decay

    @staticmethod
    def backward(ctx, g):
        x, decay = ctx.saved_tensors
        return g * decay, -g * x * decay
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
        decay = torch.exp(-y)
        return g * decay, -g * x * decay
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.rules._double_backward import (
    is_once_differentiable,
    launches_kernels,
    runs_without_grad,
    silently_wrong,
)
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    second = audit.second
    if second is None or second.status != "wrong" or not second.hidden or second.changed:
        return
    if (is_once_differentiable(audit) and audit.running(("PB402",))) or runs_without_grad(audit):
        return
    yield silently_wrong(
        audit,
        "PB404",
        second,
        "save inputs and outputs only and recompute the rest in backward, or return the intermediate as an output",
        because=f"; {_cause(audit, second.hidden)}",
    )


def _cause(audit: Audit, hidden: int) -> str:
    if launches_kernels(audit):
        return "its backward launches kernels, which PyTorch does not differentiate"
    treats = "so double backward treats"
    if hidden == 1:
        return f"it uses 1 saved tensor that is neither an input nor an output, {treats} it as a constant"
    return f"it uses {hidden} saved tensors that are neither inputs nor outputs, {treats} them as constants"


RULE = Rule(__doc__, runtime=_run, blames="backward", kinds=("function",), early=2, column="double backward", proves=2)
