"""unprotected-once-differentiable (PB402): `once_differentiable` lets a wrong second derivative through.

## What it finds
A backward marked `@once_differentiable` whose second derivative is not zero. The mark attaches an error only
where the cotangent requires grad, and only to nodes that `.backward()` runs: `autograd.grad`,
`functional.hessian` and a loss whose last step is linear get a number instead of the error.

## Why it hurts
`torch.autograd.functional.hessian` returns 0 where the truth is 108, and the author takes the mark for a
protection.

## Limits
It is PyTorch's shortcoming (torch/autograd/function.py says so in a comment), but only the author can mend it:
with a backward that can be differentiated, or one that refuses in place of the mark. Its first lines are then
`if torch.is_grad_enabled(): raise NotImplementedError("no second derivative")`: gradients are enabled in a backward
where a graph of the gradient is asked for, by `create_graph=True`, and always by `torch.func`. A second Function that
carries the gradient, and whose own backward raises, protects eager mode alone: `torch.compile` of PyTorch 2.13
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
    from pullback.check.state import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    second = audit.second
    if second is None or second.status != "wrong" or not is_once_differentiable(audit):
        return
    yield silently_wrong(
        audit,
        "PB402",
        second,
        "make the backward differentiable; if it cannot be, raise an error in it if torch.is_grad_enabled(), which is "
        "so where a graph of the gradient is asked for",
        because=", although the backward is marked once_differentiable",
    )


RULE = Rule(__doc__, runtime=_run, blames="backward", kinds=("function",), early=2, column="double backward", proves=2)
