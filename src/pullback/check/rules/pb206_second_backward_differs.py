"""second-backward-differs (PB206): a second backward over a retained graph gives another gradient, or raises.

## What it finds
One forward, and two backwards over its graph with the same cotangents: the second must give what the first gave.
Buffers on `ctx` that the backward writes to, saved tensors that it changes, lists that it pops, and gradients that a
nested backward adds to a tensor that was saved, all break it.

## Why it hurts
`retain_graph=True` is how two losses share a forward, how a Jacobian is taken row by row, and how `gradcheck` works.
The second gradient is silently twice the first, or its square.

## Limits
A second backward that raises is a warning: it is loud. What gives another gradient whenever it is called, the same
call twice, is reported by no finding here. Sees the example.

## Bad
```python
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.slope = 3 * x * x
        return x**3

    @staticmethod
    def backward(ctx, g):
        return ctx.slope.mul_(g)
```

## Good
```python
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.derivative.agreement import difference, gradients
from pullback.check.rules._rule import Rule
from pullback.check.trial import Raised, forward, standard_cotangents, vjp
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.state import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    if not audit.backward_works:
        return
    run = forward(audit.subject, audit.base)
    cotangents = standard_cotangents(run.roots)
    first = vjp(run, cotangents, retain_graph=True)
    first = [g if g is None else g.clone() for g in first]  # the second may write to the memory of the first
    try:
        where = difference(first, vjp(run, cotangents))
        what = where and f"the gradient of {audit.names[where.order]} changes: {where}"
    except Raised as error:
        where, what = None, str(error)
    if not what or (where and not _repeats(audit)):
        return
    yield audit.finding(
        "PB206",
        "error" if where else "warning",
        "wrong" if where else "unsupported",
        f"in a second backward over a retained graph, {what}",
        case=audit.base,
        tail=[
            audit.outs,
            "g = [torch.ones_like(o) for o in outs]",
            "print(torch.autograd.grad(outs, inputs, g, retain_graph=True, allow_unused=True))",
            "print(torch.autograd.grad(outs, inputs, g, allow_unused=True))",
        ],
        hint="write to nothing on ctx in the backward, and take nothing off it",
    )


def _repeats(audit: Audit) -> bool:
    """Whether the whole call, made twice, gives the same gradient: determinism is another property."""
    once, again = (gradients(audit.subject, audit.base) for _ in range(2))
    return difference(once, again, rounding=0.0) is None


RULE = Rule(__doc__, runtime=_run, blames="backward", of_weights="alone", needs_cpu=True)
