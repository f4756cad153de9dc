"""unreduced-broadcast (PB115): the gradient of a broadcast input is not summed back to its shape.

## What it finds
An input that the forward broadcasts, whose gradient `backward` returns in the output's shape.

## Why it hurts
PyTorch's eager engine silently sums such a gradient, so the mistake goes unnoticed. But the full-size gradient is
materialised first, and `torch.func` and forward-over-reverse see the wrong shape. If the backward multiplies by the
input before broadcasting, the product may broadcast again and be summed to a wrong number, which PB101 reports too.

## Limits
It is a warning if the sum is correct. If the forward broadcasts by accident, reject such shapes in the forward.
Of a function whose Triton kernels are interpreted, only the example is tried.

## Bad
```python
class Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, g):
        return g, g

def inputs():
    return (torch.randn(3, 5, requires_grad=True), torch.randn(5, requires_grad=True))
```

## Good
```python
class Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias):
        ctx.shapes = x.shape, bias.shape
        return x + bias

    @staticmethod
    def backward(ctx, g):
        x_shape, bias_shape = ctx.shapes
        return g.sum_to_size(x_shape), g.sum_to_size(bias_shape)

def inputs():
    return (torch.randn(3, 5, requires_grad=True), torch.randn(5, requires_grad=True))
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.cases import sizes
from pullback.check.derivative.recorder import misshapen
from pullback.check.rules._reproduction import returned
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    for case in (audit.base, *(() if audit.subject.is_interpreted else sizes.broadcasts(audit.base))):
        for bad in misshapen(audit.subject, case):
            if not bad.is_broadcast:
                continue
            is_of_example = case is audit.base
            yield audit.finding(
                "PB115",
                "warning" if is_of_example else "info",
                "wrong" if is_of_example else "unsupported",
                f"{bad.name} of shape {bad.expected} is broadcast; its gradient is returned with shape {bad.returned}, "
                "and only eager PyTorch sums it",
                case=case,
                tail=[audit.outs, *returned("shape")],
                hint=f"return g.sum_to_size({bad.name}.shape)"
                + ("" if is_of_example else ", or refuse inputs of different shapes"),
            )
            return


RULE = Rule(
    __doc__, runtime=_run, blames="backward", kinds=("function",), column="eager", context="inputs that broadcast"
)
