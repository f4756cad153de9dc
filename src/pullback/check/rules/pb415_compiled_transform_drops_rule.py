"""compiled-transform-drops-rule (PB415): torch.compile of torch.func.grad replaces the custom backward.

## What it finds
The gradient by `torch.compile(torch.func.grad(…), backend="aot_eager")` is compared with the eager one. Under a
`torch.func` transform Dynamo inlines the forward of every `autograd.Function` and silently differentiates it by
autograd. A difference is an info, in one line for all functions of a report, since the author of the function cannot
prevent it.

## Why it hurts
When compiled, a surrogate or straight-through gradient becomes zero, and a gradient modifier has no effect. The same
happens with `torch.func.jvp`, with `jacrev` and in a backward through `vmap` under the compiler.

## Limits
Nothing is reported if the eager gradient itself is wrong by mistake (PB101), at a kink, or if the compiler raises.
PyTorch 2.15 keeps the backward under `grad`, `vjp` and `jacrev`, so the rule finds nothing there, although a compiled
`jvp` and a backward through a compiled `vmap` still differentiate the forward.

## Bad
```python
class ReverseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return -g
```

## Good
```python
class Tanh(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.tanh(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * (1 - out * out)
```
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.check.contexts.compare import PRINT, ContextCall, compare_one
from pullback.check.contexts.eager import EagerReference, base_setting, is_comparable, may_drop, on_smallest
from pullback.check.rules._rule import Rule
from pullback.check.trial import reseed
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    setting = base_setting(audit)
    if setting is None or not may_drop(audit):
        return
    found = _find(audit, setting)
    if found is not None and found.verdict == "wrong":
        yield on_smallest(audit, setting, found, lambda small: _find(audit, small))


def _find(audit: Audit, setting: EagerReference) -> Finding | None:
    torch.compiler.reset()
    try:
        return compare_one(audit, "PB415", setting, _WAY)
    finally:
        torch.compiler.reset()


def _gradient(setting: EagerReference) -> Sequence[Tensor]:
    everything = tuple(range(len(setting.inputs)))
    compiled = torch.compile(torch.func.grad(setting.loss(), argnums=everything), backend="aot_eager")
    reseed()
    gradients: Sequence[Tensor] = compiled(*setting.inputs)
    return gradients


_WAY = ContextCall(
    "torch.compile(torch.func.grad(…))",
    _gradient,
    [
        "def loss(*xs):",
        "    return sum((g.conj() * out).real.sum() for g, out in zip(cotangents, call(*xs)))",
        "everything = tuple(range(len(points)))",
        "got = torch.compile(torch.func.grad(loss, argnums=everything), backend='aot_eager')(*points)",
        *PRINT,
    ],
    hint="compile the function without torch.func, or use torch.func without torch.compile",
    severity="info",
    cause="PyTorch drops the backward of every autograd.Function here",
    context="traced",
)

RULE = Rule(
    __doc__,
    runtime=_run,
    shrinks=False,
    late=True,
    column="compile of func",
    compared=is_comparable,
    compiles=True,
    of_pytorch=True,
    context="compiled torch.func",
)
