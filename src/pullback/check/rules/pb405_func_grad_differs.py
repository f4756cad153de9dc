"""func-grad-differs (PB405): torch.func.grad or torch.func.vjp gives another gradient than eager mode.

## What it finds
The gradients by `torch.func.vjp`, and by `torch.func.grad` of a scalar made of the outputs, are compared with that of
`torch.autograd.grad` in eager mode, on the example and on the example in float32. A different gradient is an error.
PyTorch rejects a Function without `setup_context`, and any `torch.library` custom op, with a clear error: that is an
info. Any other exception, of a Function with `setup_context`, is a warning.

## Why it hurts
Per-sample gradients, Hessians and meta-gradients are computed with `torch.func`. It runs the backward on wrapped
tensors and records the graph of the gradient, so code that inspects its tensors may take another branch.

## Limits
The rule tests one level of `torch.func`. Forward mode is PB407, vectorised reverse mode PB408, vmap PB406. `pullback
check --fix --select PB405` splits a `forward(ctx, …)` into `forward(…)` and `setup_context` if that needs no
recomputation.

## Bad
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return g * x
        return 2 * g * x
```

## Good
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.check.contexts.compare import PRINT, ContextCall, compare, is_promised
from pullback.check.contexts.eager import EagerReference, settings
from pullback.check.rules._rule import Rule
from pullback.check.trial import reseed
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    yield from compare(audit, "PB405", settings(audit), _WAYS, is_promised(audit.subject, vmap=False))


def _vjp(setting: EagerReference) -> tuple[Tensor, ...]:
    reseed()
    pullback = torch.func.vjp(setting.function(), *setting.inputs)[1]
    gradients: tuple[Tensor, ...] = pullback(setting.cotangents)
    return gradients


def _grad(setting: EagerReference) -> tuple[Tensor, ...]:
    reseed()
    everything = tuple(range(len(setting.inputs)))
    gradients: tuple[Tensor, ...] = torch.func.grad(setting.loss(), argnums=everything)(*setting.inputs)
    return gradients


_HINT = "the backward branches on grad mode, requires_grad, is_leaf or the type of its tensors: it must not"
_WAYS = (
    ContextCall("torch.func.vjp", _vjp, ["got = torch.func.vjp(call, *points)[1](cotangents)", *PRINT], _HINT),
    ContextCall(
        "torch.func.grad",
        _grad,
        [
            "def loss(*xs):",
            "    return sum((g.conj() * out).real.sum() for g, out in zip(cotangents, call(*xs)))",
            "got = torch.func.grad(loss, argnums=tuple(range(len(points))))(*points)",
            *PRINT,
        ],
        _HINT,
    ),
)

RULE = Rule(__doc__, runtime=_run, column="func.grad", transforms=True, context="torch.func")
