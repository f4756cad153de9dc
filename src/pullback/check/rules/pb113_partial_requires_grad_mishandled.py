"""partial-requires-grad-mishandled (PB113): freezing some inputs breaks or changes the gradients of the others.

## What it finds
The rule requires grad of each input alone, and of all inputs but one. The backward must run, and must return the same
gradients as when all inputs require grad.

## Why it hurts
Fine-tuning with frozen layers crashes with an `UnboundLocalError`, or a parameter guarded by another input's
flag silently gets `None`.

## Limits
If the function has more than a few inputs, not every subset is tried.

## Bad
```python
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        if ctx.needs_input_grad[0]:
            gx = g * weight
            gw = g * x
        return gx, gw
```

## Good
```python
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        gx = g * weight if ctx.needs_input_grad[0] else None
        gw = g * x if ctx.needs_input_grad[1] else None
        return gx, gw
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.cases.repro import call_text
from pullback.check.derivative.agreement import difference, gradients
from pullback.check.rules._rule import Rule
from pullback.check.trial import Raised
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    count = len(audit.names)
    if count < 2 or not audit.backward_works:
        return
    full = gradients(audit.subject, audit.base)
    for mask in _masks(count):
        audit.events.beat()
        asked = [name for name, wanted in zip(audit.names, mask, strict=True) if wanted]
        only = f"with only {' and '.join(asked)} requiring grad"
        try:
            got = gradients(audit.subject, audit.base, mask=mask)
        except Raised as error:
            yield _finding(audit, mask, f"{only}, {error}")
            return
        expected = [g for g, wanted in zip(full, mask, strict=True) if wanted]
        where = difference(expected, got) if len(got) == len(expected) else None
        if where is not None:
            yield _finding(audit, mask, f"{only}, the gradient of {asked[where.tensor_index]} changes: {where}")
            return


def _finding(audit: Audit, mask: list[bool], message: str) -> Finding:
    return audit.finding(
        "PB113",
        "error",
        "wrong",
        message,
        case=audit.base,
        mask=mask,
        tail=[
            audit.outs,
            "torch.autograd.backward(outs, [torch.ones_like(o) for o in outs])",
            "print('some:', [x.grad for x in inputs])",
            "for x in inputs:",
            "    x.requires_grad_().grad = None",
            f"out = fn({call_text(audit.base)})",
            audit.outs,
            "torch.autograd.backward(outs, [torch.ones_like(o) for o in outs])",
            "print('all:', [x.grad for x in inputs])",
        ],
        hint="guard each gradient by its own input's ctx.needs_input_grad, and return None for the others",
    )


def _masks(count: int, limit: int = 12) -> list[list[bool]]:
    """Return each input alone, then all but each."""
    alone = [[k == only for k in range(count)] for only in range(count)]
    without = [[k != left_out for k in range(count)] for left_out in range(count)] if count > 2 else []
    return (alone + without)[:limit]


RULE = Rule(__doc__, runtime=_run, of_optional=True, blames="backward", column="eager", of_weights="always")
