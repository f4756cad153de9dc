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

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pullback.check.contexts.compare import Way, compare
from pullback.check.contexts.transforms import Setting, settings
from pullback.check.rules._rule import rule
from pullback.check.trial import Raised, guarded, reseed
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.state import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    known = settings(audit)
    # A backward that adds to `.grad` itself, which PB210 tells, gives other gradients there without a checkpoint, too.
    alike = (
        known if all(setting.differs(_by_backward(setting, setting.function())) is None for setting in known) else []
    )
    for way, suited in ((_NOT_REENTRANT, known), (_REENTRANT, alike)):
        found = list(compare(audit, "PB411", suited, [way]))
        yield from found
        if found:
            return


def _is_the_same_by_backward(setting: Setting) -> bool:
    try:
        with guarded("backward"):
            return setting.differs(_by_backward(setting, setting.function())) is None
    except Raised:
        return False


def _by_backward(setting: Setting, function: Callable[..., Sequence[Tensor]]) -> Sequence[Tensor | None]:
    leaves = setting.leaves()
    reseed()
    outs, cotangents = _in_graph(setting, function(*leaves))
    torch.autograd.backward(outs, cotangents)
    return [leaf.grad for leaf in leaves]


def _in_graph(setting: Setting, outs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    pairs = [(o, g) for o, g in zip(outs, setting.cotangents, strict=True) if o.requires_grad]
    return [o for o, _ in pairs], [g for _, g in pairs]


def _not_reentrant(setting: Setting) -> Sequence[Tensor | None]:
    leaves = setting.leaves()
    reseed()
    outs, cotangents = _in_graph(setting, checkpoint(setting.function(), *leaves, use_reentrant=False))
    return torch.autograd.grad(outs, leaves, cotangents, allow_unused=True)


def _reentrant(setting: Setting) -> Sequence[Tensor | None]:
    # It refuses torch.autograd.grad.
    return _by_backward(setting, functools.partial(checkpoint, setting.function(), use_reentrant=True))


def _way(use_reentrant: bool, run: Callable[[Setting], Sequence[Tensor | None]], code: Sequence[str]) -> Way:
    return Way(
        f"checkpoint(use_reentrant={use_reentrant})",
        run,
        [
            "from torch.utils.checkpoint import checkpoint",
            "inputs = [x.detach().requires_grad_() for x in inputs]",
            f"outs = checkpoint(call, *inputs, use_reentrant={use_reentrant})",
            "print('eager mode:', expected)",
            *code,
        ],
        hint="the forward runs a second time, in the backward: keep what the backward needs on ctx alone",
        raising="the backward runs on tensors that were computed a second time: keep nothing outside ctx",
        refused_as="warning",
    )


_NOT_REENTRANT = _way(
    False,
    _not_reentrant,
    ["print('checkpoint:', torch.autograd.grad(outs, inputs, cotangents, allow_unused=True))"],
)
_REENTRANT = _way(
    True,
    _reentrant,
    ["torch.autograd.backward(outs, cotangents)", "print('checkpoint:', [x.grad for x in inputs])"],
)

RULE = rule(__doc__, runtime=_run)
