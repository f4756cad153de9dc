"""backward-mutates (PB203): the backward changes its cotangent, an input or an output in place.

## What it finds
The cotangents, the inputs and the outputs before and after one backward, compared bit by bit.

## Why it hurts
The cotangent's memory belongs to others: to the caller of `torch.autograd.grad`, and where a tensor is used twice to
the sibling branch, which then gets the changed one. Inputs and outputs are what the rest of the model saved. Their
gradients are silently wrong, and the order of the branches decides which.

## Limits
The engine sometimes hands over a copy; the change is then harmless, until it does not. Sees the example. Tensors that
are no differentiated inputs, such as buffers, are not compared.

## Bad
```python
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return g.mul_(2)
```

## Good
```python
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return g * 2
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from pullback.check.derivative.agreement import same
from pullback.check.rules._rule import rule
from pullback.check.rules._shown import literals
from pullback.check.trial import forward, guarded, kept_from_being_freed, standard_cotangents
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.state import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    if not audit.backward_works:
        return
    run = forward(audit.subject, audit.base)
    if not run.roots:
        return
    cotangents = standard_cotangents(run.roots, run.differentiable)
    watched = [
        *((f"its cotangent {k}" if len(cotangents) > 1 else "its cotangent", g) for k, g in enumerate(cotangents)),
        *((f"the input {name}", x.detach()) for name, x in zip(audit.names, run.inputs, strict=True)),
        *(("an output", out.detach()) for out in run.outputs),
    ]
    before = [t.clone() for _, t in watched]
    written = literals(cotangents)
    with guarded("backward"), kept_from_being_freed(run.outputs):
        torch.autograd.grad(run.roots, run.inputs, cotangents, allow_unused=True)
    changed = [what for (what, t), old in zip(watched, before, strict=True) if not same(old, t)]
    if changed:
        yield audit.finding(
            "PB203",
            "error",
            "wrong",
            f"the backward changes {' and '.join(dict.fromkeys(changed))} in place",
            case=audit.base,
            tail=[
                audit.outs,
                f"g = {written}",
                "before = [t.detach().clone() for t in (*g, *inputs, *outs)]",
                "torch.autograd.grad(outs, inputs, g, allow_unused=True)",
                "print('unchanged:', [torch.equal(a, b) for a, b in zip(before, (*g, *inputs, *outs))])",
            ],
            hint="compute out of place: g * a for g.mul_(a); clone what has to be written to",
        )


RULE = rule(__doc__, runtime=_run, blames="backward", kinds=("function",))
