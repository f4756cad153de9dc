"""grad-written-by-hand (PB210): the backward writes to an input's `.grad`.

## What it finds
The rule calls `torch.autograd.grad`, which returns gradients and does not touch `.grad`, on inputs that are leaves. If
a leaf input, or a weight that the function holds, has a `.grad` afterwards, the backward wrote it: directly, or by
`.backward()` on a graph that reaches the leaf.

## Why it hurts
`loss.backward()` adds the returned gradient to the one already written, so the gradient is doubled.
`torch.autograd.grad`, double backward, hooks and everything built on them do not see the written gradient.

## Limits
The weights are those that PB118 finds.

## Bad
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            (x * x).backward(g)
        return x.grad
```

## Good
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            copy = x.detach().requires_grad_()
            (gx,) = torch.autograd.grad(copy * copy, copy, g)
        return gx
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.derivative.agreement import first_of
from pullback.check.rules._rule import Rule
from pullback.check.trial import forward, standard_cotangents, vjp
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    if not audit.backward_works:
        return
    run = forward(audit.subject, audit.base)
    vjp(run, standard_cotangents(run.roots))
    written = [name for name, x in zip(audit.names, run.inputs, strict=True) if x.is_leaf and x.grad is not None]
    held = [audit.base.names[p] for p, h in audit.base.captured.items() if h.tensor.grad is not None]
    if held and not written:
        yield _of_weights(audit, held)
    elif written:
        yield audit.finding(
            "PB210",
            "error",
            "wrong",
            f"the backward writes to .grad of {' and '.join(dict.fromkeys(written))}: loss.backward() adds to that",
            case=audit.base,
            tail=[
                audit.outs,
                "torch.autograd.grad(outs, inputs, [torch.ones_like(o) for o in outs], allow_unused=True)",
                "print('.grad after autograd.grad:', [x.grad for x in inputs])",
            ],
            hint="return the gradient; in a nested backward differentiate a detached copy, by torch.autograd.grad",
        )


def _of_weights(audit: Audit, names: list[str]) -> Finding:
    return audit.finding(
        "PB210",
        "error",
        "wrong",
        f"the backward adds to .grad of {first_of(names)}, where torch.autograd.grad asks for gradients of others, too",
        case=audit.base,
        tail=[
            audit.outs,
            "torch.autograd.grad(outs, inputs, [torch.ones_like(o) for o in outs], allow_unused=True)",
            "print('.grad after autograd.grad:', [tensor.grad for tensor in held.values()])",
        ],
        hint="pass them as arguments and return their gradients; in a nested backward use torch.autograd.grad",
    )


RULE = Rule(
    __doc__, runtime=_run, blames="backward", of_weights="always", needs_cpu=True, settled_by=("grad-written-by-hand",)
)
