"""nested-jvp-drops-derivative (PB417): forward mode through a jvp, twice, loses the second derivative.

## What it finds
Second and third derivatives with two or more levels of forward mode, as `jacfwd(jacfwd(f))`, of a Function that defines
`jvp`. PyTorch runs the `jvp` on tensors from which the outer tangent has been taken, so its derivative is missing,
without a word. That is a limit of PyTorch, and the same for every `jvp`: the finding is an info.

## Why it hurts
A Hessian by `jacfwd(jacfwd(f))`, or a Taylor coefficient by nested `jvp`, is wrong in silence. Forward over reverse
(`torch.func.hessian`) and reverse over forward are right.

## Limits
Other nestings are for PB416.

## Bad
```python
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g

    @staticmethod
    def jvp(ctx, tx):
        (x,) = ctx.saved_tensors
        return 3 * x * x * tx
```

## Good
```python
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.rules._nesting import differing_nestings, is_lost, measured
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    for found in measured(audit):
        lost = [nesting for nesting in found.nested.wrong if is_lost(audit, nesting)]
        if lost:
            yield differing_nestings(audit, "PB417", found, lost, "info", _HINT)
            return


_HINT = (
    "take second derivatives by forward over reverse; or derive from pullback.AutogradFunction, which is right there "
    "or refuses"
)

RULE = Rule(
    __doc__,
    runtime=_run,
    blames="jvp",
    shrinks=False,
    late=True,
    column="func.jvp",
    transforms=True,
    of_pytorch=True,
    context="nested forward mode",
)
