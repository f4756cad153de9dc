"""keeps-larger-memory (PB703): a small saved view keeps a much larger storage alive.

## What it finds
Tensors kept between forward and backward, other than views of inputs and outputs, whose storage is larger than their
elements need: a column of a matrix, one of the results of a stacked computation. The finding gives both sizes.

## Why it hurts
A view keeps the whole allocation alive. The backward needs one row, and the whole matrix stays in memory.

## Limits
The finding is advice, measured on the example. Views of one storage are counted together. The memory of inputs and
outputs is not reported, since it is alive anyway.

## Bad
```python
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        powers = torch.stack([x, x * x, x * x * x])
        ctx.save_for_backward(powers[1])
        return powers[2].clone()

    @staticmethod
    def backward(ctx, g):
        (square,) = ctx.saved_tensors
        return 3 * g * square
```

## Good
```python
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        powers = torch.stack([x, x * x, x * x * x])
        ctx.save_for_backward(powers[1].clone())
        return powers[2].clone()

    @staticmethod
    def backward(ctx, g):
        (square,) = ctx.saved_tensors
        return 3 * g * square
```
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from pullback.check.derivative.recorder import describe, size, storage_of
from pullback.check.rules._residuals import bytes_kept
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_ENOUGH = 2
"""Factor by which the kept memory must exceed the needed part; allocations are rounded up."""


def _run(audit: Audit) -> Iterator[Finding]:
    kept = [] if audit.trace is None else sorted(audit.trace.computed, key=storage_of)
    for _, sharing in groupby(kept, key=storage_of):
        views = list({(t.storage_offset(), t.shape): t for t in sharing}.values())
        held = views[0].untyped_storage().nbytes()
        needed = sum(map(size, views))
        if held >= _ENOUGH * needed > 0:
            yield audit.finding(
                "PB703",
                "warning",
                "wrong",
                f"kept for the backward: {' and '.join(map(describe, views))}, in memory of {held} bytes, "
                "all of which stays",
                case=audit.base,
                evidence=bytes_kept(held, needed),
                hint="save a copy: .clone() of the view",
            )


RULE = Rule(__doc__, runtime=_run, kinds=("function",), shrinks=False, needs_cpu=True)
