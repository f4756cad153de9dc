"""unprotected-once-differentiable (PB402): `once_differentiable` lets a wrong second derivative through.

## What it finds
A backward marked `@once_differentiable` whose second derivative is not zero. The decorator raises an error only if the
cotangent requires grad, and only in nodes that `.backward()` runs. `autograd.grad`, `functional.hessian` and a loss
whose last step is linear return a number instead.

## Why it hurts
`torch.autograd.functional.hessian` returns 0 where the Hessian is 108, although the author relied on the decorator for
protection.

## Limits
This is a limitation of PyTorch (a comment in torch/autograd/function.py says so), but only the author can fix it: write
a differentiable backward, or replace the decorator by a backward that raises. Its first lines are then `if
torch.is_grad_enabled(): raise NotImplementedError("no second derivative")`. Gradients are enabled inside a backward if
a graph of the gradient was requested, by `create_graph=True`, and always under `torch.func`. A second Function that
computes the gradient, and whose own backward raises, protects eager mode alone: `torch.compile` of PyTorch 2.13
computes another gradient with it.

## Bad
```python
from torch.autograd.function import once_differentiable

class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x**2
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
        return g * 3 * x**2
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.rules._double_backward import is_once_differentiable, silently_wrong
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    second = audit.second
    if second is None or second.status != "wrong" or not is_once_differentiable(audit):
        return
    yield silently_wrong(
        audit,
        "PB402",
        second,
        "make the backward differentiable; if that is impossible, replace `@once_differentiable`, which raises only in "
        "`.backward()`, and only if the incoming gradient requires grad, by `if torch.is_grad_enabled(): raise …`",
        because=", although the backward is marked once_differentiable",
    )


RULE = Rule(__doc__, runtime=_run, blames="backward", kinds=("function",), early=2, column="double backward", proves=2)
