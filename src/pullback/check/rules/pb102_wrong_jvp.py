"""wrong-jvp (PB102): the forward-mode derivative is not the derivative of the forward.

## What it finds
The tangent that the `jvp` method (or forward mode through a callable) returns for a random input tangent,
compared with the numeric derivative of the forward, as in PB101. A jvp that ignores its tangent, forgets an
input or returns a Jacobian is caught by it.

## Why it hurts
`jacfwd`, `hessian`, Hessian-vector products and everything else that is forward-over-reverse is wrong, while
training looks right.

## Limits
Functions without a `jvp` raise in forward mode: that is PB407's subject. Runs on the example alone.

## Bad
```python
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return g * 3 * ctx.saved_tensors[0] ** 2

    @staticmethod
    def jvp(ctx, tx):
        return 3 * ctx.saved_tensors[0] * tx
```

## Good
```python
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return g * 3 * ctx.saved_tensors[0] ** 2

    @staticmethod
    def jvp(ctx, tx):
        return 3 * ctx.saved_tensors[0] ** 2 * tx
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.derivative.agreement import show
from pullback.check.derivative.forward_mode import jvp_disagreement
from pullback.check.rules._rule import rule
from pullback.report.model import Evidence, Finding

if TYPE_CHECKING:
    from pullback.check.state import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    if audit.intent is not None:
        return
    for order, name in enumerate(audit.names):
        found = jvp_disagreement(audit, order)
        if found is None:
            continue
        where = f"the tangent of output {found.output} at {list(found.index)}, moving {name},"
        yield audit.finding(
            "PB102",
            "error",
            "wrong",
            f"{where} is {show(found.got)}; the derivative of the forward is {show(found.expected)}",
            case=audit.base,
            evidence=Evidence(
                found.expected,
                found.got,
                found.bar,
                found.index,
                f"tangent of output {found.output}",
                "float64",
                1,
                1,
            ),
            tail=found.tail,
            hint="derive the jvp again: it must be linear in the tangents and use every one of them",
        )
        return


RULE = rule(__doc__, runtime=_run)
