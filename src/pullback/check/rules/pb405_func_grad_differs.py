"""func-grad-differs (PB405): torch.func.grad or torch.func.vjp gives another gradient than eager mode.

## What it finds
The gradient by `torch.func.vjp`, and by `torch.func.grad` of a scalar made of the outputs, against the one that
`torch.autograd.grad` takes in eager mode: on the example, and on the same in float32. A different gradient is
an error. A Function without `setup_context`, and any `torch.library` custom op, is refused by PyTorch, clearly:
that is information. Any other exception of a Function that has one is a warning.

## Why it hurts
`torch.func` computes the per-sample gradients, Hessians and meta-gradients. It runs the rule on wrapped tensors
and builds the gradient's own graph, so code that looks at what it was given takes another branch there.

## Limits
One level of `torch.func`. Forward mode is PB407, vectorised reverse mode PB408, vmap PB406.
`pullback check --fix --select PB405` splits a `forward(ctx, …)` into `forward(…)` and `setup_context`, where nothing
has to be computed twice for that.

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
    from pullback.check.state import Audit


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
