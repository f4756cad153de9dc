"""second-backward-differs (PB206): a second backward over a retained graph gives another gradient, or raises.

## What it finds
One forward runs, then two backwards over its graph with the same cotangents. Both must return the same gradients.
Several things break this: a backward that writes to buffers on `ctx`, changes saved tensors in place or pops from a
list, and a nested backward that accumulates into the `.grad` of a saved tensor.

## Why it hurts
Losses that share a forward, Jacobians computed row by row and `gradcheck` all use `retain_graph=True`. The second
gradient is then silently twice the first, or its square.

## Limits
A second backward that raises is a warning, since nobody misses the error. A function whose gradient differs between two
equal calls is not reported by this rule. The rule runs on the example alone.

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
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    if not audit.backward_works:
        return
    run = forward(audit.subject, audit.base)
    cotangents = standard_cotangents(run.roots)
    first = vjp(run, cotangents, retain_graph=True)
    first = [g if g is None else g.clone() for g in first]  # the second may write to the memory of the first
    try:
        where = difference(first, vjp(run, cotangents))
        what = where and f"the gradient of {audit.names[where.tensor_index]} changes: {where}"
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
        hint="in the backward, do not write to anything on ctx, and remove nothing from it",
    )


def _repeats(audit: Audit) -> bool:
    """Whether the whole call, made twice, gives the same gradient: determinism is another property."""
    first, second = (gradients(audit.subject, audit.base) for _ in range(2))
    return difference(first, second, rounding=0.0) is None


RULE = Rule(__doc__, runtime=_run, blames="backward", of_weights="alone", needs_cpu=True)
