"""checkpoint-breaks (PB411): activation checkpointing changes the gradient, or makes the backward raise.

## What it finds
The gradient through `torch.utils.checkpoint.checkpoint`, with `use_reentrant=False` and `True`, against the
plain one. A different gradient is an error, and so is a second read of `ctx.saved_tensors`, which
`use_reentrant=False` refuses. Any other exception is a warning.

## Why it hurts
Checkpointing runs the forward again during the backward. A backward that reads `ctx.saved_tensors` twice raises
under it; one that uses what is kept outside the context (on the class, by the address of a tensor) may take
another call's values.

## Limits
One call in one checkpoint, on the example and on the same in float32.

## Bad
```python
class XSinX(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sin(x)

    @staticmethod
    def backward(ctx, g):
        cosine = torch.cos(ctx.saved_tensors[0])
        return g * (torch.sin(ctx.saved_tensors[0]) + ctx.saved_tensors[0] * cosine)
```

## Good
```python
class XSinX(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sin(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (torch.sin(x) + x * torch.cos(x))
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pullback.check.contexts.compare import Way, compare
from pullback.check.contexts.transforms import Setting, settings
from pullback.check.rules._rule import rule
from pullback.check.trial import reseed
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.state import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    yield from compare(audit, "PB411", settings(audit), _WAYS)


def _checkpointed(use_reentrant: bool) -> Callable[[Setting], Sequence[Tensor | None]]:
    def run(setting: Setting) -> Sequence[Tensor | None]:
        leaves = setting.leaves()
        reseed()
        outs = checkpoint(setting.function(), *leaves, use_reentrant=use_reentrant)
        pairs = [(o, g) for o, g in zip(outs, setting.cotangents, strict=True) if o.requires_grad]
        # Not torch.autograd.grad: the reentrant kind refuses it.
        torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
        return [leaf.grad for leaf in leaves]

    return run


def _way(use_reentrant: bool) -> Way:
    name = f"checkpoint(use_reentrant={use_reentrant})"
    return Way(
        name,
        _checkpointed(use_reentrant),
        [
            "from torch.utils.checkpoint import checkpoint",
            "inputs = [x.detach().requires_grad_() for x in inputs]",
            f"torch.autograd.backward(checkpoint(call, *inputs, use_reentrant={use_reentrant}), cotangents)",
            "print('eager mode:', expected)",
            "print('checkpoint:', [x.grad for x in inputs])",
        ],
        hint="the forward runs a second time, in the backward: keep what the backward needs on ctx alone",
        raising="the backward runs on tensors that were computed a second time: keep nothing outside ctx",
        refused_as="warning",
    )


_WAYS = (_way(use_reentrant=False), _way(use_reentrant=True))

RULE = rule(__doc__, runtime=_run)
