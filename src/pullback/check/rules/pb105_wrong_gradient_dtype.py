"""wrong-gradient-dtype (PB105): a returned gradient has a narrower dtype, or another device, than its input.

## What it finds
The dtype and device of each gradient as `backward` returned it. The engine casts it to the input's dtype
without a word, so digits that were lost stay lost.

## Why it hurts
A float64 input gets a float32 gradient: gradcheck turns noisy and solvers that need the digits stall.

## Limits
A wider dtype than the input's costs memory, not digits, and is not reported. Sees the example, and float32
where the forward takes it.

## Bad
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (2 * g * x).float()
```

## Good
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from pullback.check.cases import dtypes
from pullback.check.derivative.raw import returned_gradients
from pullback.check.rules._rule import rule
from pullback.check.rules._shown import returned
from pullback.dtypes import has_derivative
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.state import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    for case in (audit.base, *dtypes.other_dtypes(audit.base)):
        if case is not audit.base and (case.label != "float32" or not audit.is_valid(case)):
            continue
        for name, x, gradient in returned_gradients(audit.subject, case):
            loses = torch.finfo(gradient.dtype).eps > torch.finfo(x.dtype).eps if _floats(gradient) else True
            elsewhere = gradient.device != x.device
            if loses or elsewhere:
                place = " on {0.device}" if elsewhere else ""
                what, wanted = (("{0.dtype}" + place).format(t).removeprefix("torch.") for t in (gradient, x))
                yield audit.finding(
                    "PB105",
                    "error" if elsewhere or not _floats(gradient) else "warning",
                    "wrong",
                    f"backward returned a gradient of {what} for {name} of {wanted}",
                    case=case,
                    tail=[audit.outs, *returned("device" if elsewhere else "dtype")],
                    hint="keep the input's dtype: no .float(), and pass dtype= and device= to factories",
                )
                return


def _floats(t: torch.Tensor) -> bool:
    return has_derivative(t)


RULE = rule(__doc__, runtime=_run, blames="backward", kinds=("function",))
