"""saved-tensor-hooks-break (PB412): hooks on saved tensors change the gradient, or make the backward raise.

## What it finds
The gradient of a call under `torch.autograd.graph.saved_tensors_hooks` that keep a detached copy of each saved tensor,
and under `save_on_cpu`, is compared with the gradient without hooks. A different gradient is an error; an exception is
a warning.

## Why it hurts
Offloading, compression and checkpointing of activations use such hooks. The backward then gets tensors with equal
values but other identities: at another address, and without Python attributes that the forward may have set on them.

## Limits
Hooks do not see a tensor that is an attribute of `ctx`: the gradient is correct, but the memory is not saved.

## Bad
```python
class LeakyRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.slope = torch.where(x > 0, 1, 0.1)
        ctx.save_for_backward(x)
        return x * x.slope

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.slope
```

## Good
```python
class LeakyRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        slope = torch.where(x > 0, 1, 0.1)
        ctx.save_for_backward(slope)
        return x * slope

    @staticmethod
    def backward(ctx, g):
        (slope,) = ctx.saved_tensors
        return g * slope
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from pullback.check.contexts.compare import PRINT, ContextCall, compare
from pullback.check.contexts.eager import EagerReference, settings
from pullback.check.rules._rule import Rule
from pullback.check.trial import reseed
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    yield from compare(audit, "PB412", settings(audit), _WAYS)


def _under(hooks: Callable[[], AbstractContextManager[Any]]) -> Callable[[EagerReference], Sequence[Tensor | None]]:
    def run(setting: EagerReference) -> Sequence[Tensor | None]:
        leaves = setting.leaves()
        reseed()
        with hooks():
            outs = setting.function()(*leaves)
        return setting.gradient_from(outs, leaves)

    return run


def _copying() -> AbstractContextManager[Any]:
    return saved_tensors_hooks(_copy_to_new_memory, lambda t: t)


def _copy_to_new_memory(t: Tensor) -> Tensor:
    """Return a copy at an address that no earlier tensor had: allocations never start 16 bytes into a block.

    Otherwise a backward that looks its tensors up by address could find those of an earlier call, and be right by
    chance. Vectorised loads need an alignment of 16 bytes.
    """
    copy = t.detach().clone()
    if type(copy) is not Tensor or copy.layout is not torch.strided or not copy.numel():
        return copy
    offset = _ALIGNED // copy.element_size()
    extent = 1 + sum((n - 1) * step for n, step in zip(copy.shape, copy.stride(), strict=True))
    return copy.new_empty(offset + extent).as_strided(copy.shape, copy.stride(), offset).copy_(copy)


_ALIGNED = 16
"""Bytes."""


def _way(name: str, hooks: Callable[[], AbstractContextManager[Any]], text: str) -> ContextCall:
    return ContextCall(
        name,
        _under(hooks),
        [
            f"with torch.autograd.graph.{text}:",
            "    outs = call(*inputs)",
            "got = torch.autograd.grad(outs, inputs, cotangents, allow_unused=True)",
            *PRINT,
        ],
        hint="the backward relies on which tensor was saved (its address, an attribute), not on its values",
        raising="the backward must work with equal tensors in place of the saved ones",
        refused_as="warning",
    )


_WAYS = (
    _way("saved_tensors_hooks", _copying, "saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t)"),
    _way("save_on_cpu", save_on_cpu, "save_on_cpu()"),
)

RULE = Rule(__doc__, runtime=_run, column="saved hooks")
