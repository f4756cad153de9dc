"""unclear-double-backward-error (PB403): double backward fails without saying that it is not supported.

## What it finds
A function for which every way to request double backward raises. It is a warning, unless the message says that double
backward is not supported ("not supported", "differentiate twice", "not implemented") or comes from a `raise` or
`assert` in the function's own code: then it is an info. Some of PyTorch's messages give harmful advice: to detach,
which would silently drop a part of the second derivative, or to retain a graph that the backward itself made and freed.

## Why it hurts
A user of a gradient penalty gets an exception that does not name its cause.

## Limits
A list of phrases decides whether a message is clear.

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
        return torch.from_numpy(2 * (x * g).numpy())
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
        return 2 * x * g
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.rules._rule import Rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    second = audit.second
    if second is None or second.status != "raised":
        return
    yield audit.finding(
        "PB403",
        "info" if second.is_clear or second.is_refusal else "warning",
        "unsupported",
        f"double backward is not supported: {second.error}",
        case=audit.base,
        tail=[
            audit.outs,
            "loss = sum((o * o).real.sum() for o in outs)",
            "first = torch.autograd.grad(loss, inputs, create_graph=True, materialize_grads=True)",
            "(loss + sum(g.real.sum() for g in first)).backward()",
        ],
        hint=""
        if second.is_refusal
        else "write the backward in differentiable torch operations, or refuse with an error that says so",
    )


RULE = Rule(__doc__, runtime=_run, blames="backward", early=2, column="double backward", context="second derivatives")
