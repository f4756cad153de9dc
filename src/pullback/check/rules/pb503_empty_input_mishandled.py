"""empty-input-mishandled (PB503): the forward rejects an empty batch, though the result would just be empty.

## What it finds
The first dimension of the example's first tensor is set to 0, if it is a batch dimension: every output begins with that
size too, and the first rows of the outputs are the same at another size. There is then nothing to compute, and the
forward should return empty outputs. The expected shapes follow from the outputs at sizes 2, 3 and 5.

## Why it hurts
Empty batches occur: the last batch of an epoch, an expert that gets no token, an image without boxes. PyTorch's own
operations accept them. Kernels that are launched for zero elements, and `reshape(-1)` of an empty tensor, raise or
crash the process.

## Limits
It is a warning, since the forward raises. It is an info if the forward itself rejects the input by a `ValueError`,
`TypeError`, `NotImplementedError` or `assert`, or by an index that no longer fits. Nothing is reported if another
dimension of some tensor has the same size, or if a row depends on the other rows, as in a softmax over them. PB119
covers the backward, and PB002 a crash of the process.

## Bad
```python
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        rows = x.reshape(x.shape[0], -1)
        return (rows * rows).reshape(x.shape)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x

def inputs():
    return (torch.randn(3, 5, dtype=torch.float64, requires_grad=True),)
```

## Good
```python
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        rows = x.flatten(1)
        return (rows * rows).reshape(x.shape)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x

def inputs():
    return (torch.randn(3, 5, dtype=torch.float64, requires_grad=True),)
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from pullback.check.cases.growth import Growth
from pullback.check.derivative.agreement import difference
from pullback.check.rules._growth import shape_finding
from pullback.check.rules._rule import Rule
from pullback.check.trial import Raised, forward
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_ROUNDING = 1e-3
"""Relative difference that another order of a row's own sums may make."""


def _run(audit: Audit) -> Iterator[Finding]:
    for growth in audit.growths:
        if growth.is_batch and growth.shapes(0) is not None and _is_by_rows(audit, growth):
            found = shape_finding(
                audit,
                "PB503",
                growth,
                0,
                f"with an empty batch (size {growth.size} -> 0)",
                refused="take empty inputs: flatten(1) in place of reshape(n, -1), and return early before a kernel",
                wrong="return empty outputs of the right shape",
                same_rank="warning",
            )
            if found is not None:
                yield found
                return


def _is_by_rows(audit: Audit, growth: Growth) -> bool:
    """Whether the first rows of the outputs are those of the first rows of the inputs."""
    long = growth.at(3)
    given = enumerate(growth.case.values)
    batches = [p for p, v in given if isinstance(v, Tensor) and v.shape[:1] == (growth.size,)]
    short = {p: long.values[p][:2] for p in batches}
    try:
        expected, got = (forward(audit.subject, case).outputs for case in (long, long.with_values(short)))
    except Raised:
        return False
    return difference([out[:2] for out in expected], got, _ROUNDING) is None


RULE = Rule(__doc__, runtime=_run, blames="forward", shrinks=False, context="empty inputs")
