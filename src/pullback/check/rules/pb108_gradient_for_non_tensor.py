"""gradient-for-non-tensor (PB108): backward returns a gradient for an argument that is not a tensor.

## What it finds
A returned value other than `None` for an argument that is a number, a string, a flag or `None`.

## Why it hurts
The engine raises at the first backward ("returned a gradient different than None at position …").

## Limits
The rule runs on the example, and with `None` for arguments that may be `None`.

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
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pullback.check.case import Case
from pullback.check.derivative.recorder import record_base
from pullback.check.optional_arguments import without_optional
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    for case in (audit.base, *without_optional(audit)):
        for place, argument, gradient in _unasked(audit, case):
            yield audit.finding(
                "PB108",
                "error",
                "wrong",
                f"backward returned a {type(gradient).__name__} for argument {place}, "
                f"which is a {type(argument).__name__}",
                case=case,
                tail=[
                    audit.outs,
                    "torch.autograd.backward(outs, [torch.ones_like(o) for o in outs])",
                ],
                hint="return None in its place",
            )
            return


def _unasked(audit: Audit, case: Case) -> Iterator[tuple[int, Any, Any]]:
    """Yield (place, argument, gradient) for each gradient of a non-tensor argument."""
    arguments = case.arguments()[0]
    for call in record_base(audit.subject, case):
        for place, (argument, gradient) in enumerate(zip(arguments, call.returned, strict=False)):
            if gradient is not None and not isinstance(argument, Tensor):
                yield place, argument, gradient


RULE = Rule(__doc__, runtime=_run, blames="backward", kinds=("function",), column="eager", needs_repeatable=False)
