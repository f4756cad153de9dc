"""unclear-double-backward-error (PB403): double backward fails without saying that it is not supported.

## What it finds
Double backward that raises in every way it can be asked for. A warning, unless the message says so ("not supported",
"differentiate twice", "not implemented"), or a `raise` or `assert` of the function's own code gives it: then an info.
Some messages give advice that makes it worse: to detach, with which the second derivative would lose a part without a
word, or to retain a graph that the backward itself has made and freed.

## Why it hurts
The user of a gradient penalty gets a crash that does not name its cause.

## Limits
What a clear message is, is decided by a list of words.

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
    from pullback.check.state import Audit


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
        hint="write the backward in differentiable torch operations, or refuse with an error that says so",
    )


RULE = Rule(__doc__, runtime=_run, blames="backward", early=2, column="double backward", context="second derivatives")
