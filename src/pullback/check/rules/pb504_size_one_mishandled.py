"""size-one-mishandled (PB504): an output loses a dimension, or the forward raises, if a size is 1.

## What it finds
The function runs on the example with each of its sizes set to 1. The expected shapes follow from the outputs at sizes
2, 3 and 5.

## Why it hurts
`squeeze()` without a dimension removes every dimension of size 1, also that of a batch of one. Later operations then
silently broadcast (1, n) with (n,), or raise in evaluation, where batches of one are common.

## Limits
It is a warning, since a function may drop such dimensions on purpose. It is an info if the number of dimensions is
correct and only their sizes differ, as for a rank; or if the forward itself rejects the size by a `ValueError`,
`TypeError`, `NotImplementedError` or `assert`, or by an index that no longer fits. The rule does not run if an integer
argument may depend on the size. Wrong gradients at size 1 are PB101 and PB104.

## Bad
```python
class Energy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x).sum(1, keepdim=True).squeeze()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g.reshape(-1, 1)

def inputs():
    return (torch.randn(3, 5, dtype=torch.float64, requires_grad=True),)
```

## Good
```python
class Energy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x).sum(1, keepdim=True).squeeze(1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g.reshape(-1, 1)

def inputs():
    return (torch.randn(3, 5, dtype=torch.float64, requires_grad=True),)
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.rules._growth import shape_finding
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    for growth in audit.growths:
        if growth.shapes(1) is not None and not growth.at(1).doubtful:
            found = shape_finding(
                audit,
                "PB504",
                growth,
                1,
                f"with size {growth.size} -> 1",
                refused="pass the dimension to squeeze, sum or transpose",
                wrong="pass the dimension to squeeze",
                same_rank="info",
            )
            if found is not None:
                yield found
                return


RULE = Rule(__doc__, runtime=_run, blames="forward", shrinks=False, context="a size of 1")
