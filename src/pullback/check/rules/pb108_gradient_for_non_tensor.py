"""gradient-for-non-tensor (PB108): backward returns a gradient for an argument that is no tensor.

## What it finds
Anything but `None` returned in the place of a number, a string, a flag or `None`.

## Why it hurts
The engine raises at the first backward ("returned a gradient different than None at position …").

## Limits
Judged on the example: an argument may be a number in one call and a tensor in another.

## Bad
```python
class Power(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n: int):
        ctx.save_for_backward(x)
        ctx.n = n
        return x**n

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.n * x ** (ctx.n - 1), g
```

## Good
```python
class Power(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n: int):
        ctx.save_for_backward(x)
        ctx.n = n
        return x**n

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.n * x ** (ctx.n - 1), None
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from pullback.check.derivative.recorder import record_base
from pullback.check.rules._rule import rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.state import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    arguments = audit.base.arguments()[0]
    for call in record_base(audit.subject, audit.base):
        for place, (argument, gradient) in enumerate(zip(arguments, call.returned, strict=False)):
            if gradient is None or isinstance(argument, Tensor):
                continue
            yield audit.finding(
                "PB108",
                "error",
                "wrong",
                f"backward returned a {type(gradient).__name__} for argument {place}, "
                f"which is a {type(argument).__name__}",
                case=audit.base,
                tail=["out.sum().backward()"],
                hint="return None in its place",
            )
            return


RULE = rule(__doc__, runtime=_run, kinds=("function",))
