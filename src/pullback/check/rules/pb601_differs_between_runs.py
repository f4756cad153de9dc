"""differs-between-runs (PB601): two runs from the same random state give other values or gradients.

## What it finds
Forward and backward run twice, on the same inputs and from the same state of PyTorch's and Python's random number
generators, and are compared bit for bit. If they differ by more than rounding, no rule that compares values is run,
since it would only measure the difference between two runs.

## Why it hurts
`torch.manual_seed` does not make training reproducible. Activation checkpointing, which runs the forward again in the
backward, computes the gradient of values that the forward did not return.

## Limits
It is a warning, or an info if only rounding differs, as in sums in another order. It is an error if the gradient grows
by the same amount with each call, since the backward then adds to the result of an earlier one. The rule runs on the
CPU, on one thread, so atomic additions of a GPU kernel are not seen. A difference that occurs in few of many runs may
be missed.

## Bad
```python
import numpy

class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        noise = torch.from_numpy(numpy.random.standard_normal(tuple(x.shape))).to(x)
        ctx.save_for_backward(noise)
        return x * noise

    @staticmethod
    def backward(ctx, g):
        (noise,) = ctx.saved_tensors
        return g * noise
```

## Good
```python
class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        noise = torch.randn_like(x)
        ctx.save_for_backward(noise)
        return x * noise

    @staticmethod
    def backward(ctx, g):
        (noise,) = ctx.saved_tensors
        return g * noise
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.cases.repro import bind, definition
from pullback.check.derivative.agreement import show
from pullback.check.rules._rule import Rule
from pullback.check.trial import standard_cotangents
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    run_difference = audit.run_difference
    if run_difference is None:
        return
    where = run_difference.where
    what = (
        f"output {where.tensor_index}"
        if run_difference.what == "output"
        else f"the gradient of {audit.names[where.tensor_index]}"
    )
    cause = _ADDS_UP if run_difference.adds_up else _BY_NUMPY if run_difference.by_numpy else ""
    yield audit.finding(
        "PB601",
        "info" if run_difference.is_rounding else "error" if run_difference.adds_up else "warning",
        "wrong",
        f"two runs from the same random state differ: {what} is {show(where.expected)}, then {show(where.got)}"
        f"{f' at {list(where.index)}' if where.index else ''}{cause}",
        case=audit.base,
        tail=[
            *definition("value_at", audit.base, [audit.outs, "return outs"]),
            bind("g", standard_cotangents(audit.base_run.roots)),
            "for _ in range(2):",
            "    torch.manual_seed(0)",
            "    outs = value_at(inputs)",
            "    print('values:', outs)",
            "    if g:",
            "        print('gradients:', torch.autograd.grad(outs, inputs, g, allow_unused=True))",
        ],
        hint="start from zeros in every backward"
        if run_difference.adds_up
        else "draw from torch's generator, or from one that an argument seeds; sum in a fixed order",
    )


_ADDS_UP = "; it grows by the same amount with each call: the backward adds to the result of an earlier one"
_BY_NUMPY = "; it draws from NumPy's generator, which torch.manual_seed does not set"


RULE = Rule(__doc__, runtime=_run, shrinks=False, explains="values that differ")
