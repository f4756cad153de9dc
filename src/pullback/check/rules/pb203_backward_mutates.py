"""backward-mutates (PB203): the backward changes its cotangent, an input or an output in place.

## What it finds
The cotangents, the inputs and the outputs before and after one backward are compared bit for bit.

## Why it hurts
The backward does not own the cotangent: the caller of `torch.autograd.grad` does, or, if a tensor is used twice, the
other branch shares it and gets the changed values. The rest of the model may have saved the inputs and outputs. The
gradients of these other nodes become silently wrong, and which ones depends on the order of the branches.

## Limits
The engine sometimes passes a copy, and the change is harmless only then. The rule runs on the example alone. Tensors
that are not differentiable inputs, such as buffers, are not compared.

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

## In the source: backward-mutates-in-source (PB806)
If the function cannot be run, this rule looks for `g.mul_(…)`, `g[…] = …` or `g += …` on an argument of `backward`, or
on a name that is unpacked from `ctx.saved_tensors`. It is a warning: a match proves the write if the line is reached,
but the saved tensor may be a private copy. A name that is rebound first is not reported.

### Bad
```python
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return cuda_kernels.double(x)

    @staticmethod
    def backward(ctx, g):
        g *= 2
        return g
```

### Good
```python
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return cuda_kernels.double(x)

    @staticmethod
    def backward(ctx, g):
        return g * 2
```
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from pullback.check.cases.repro import bind
from pullback.check.derivative.agreement import equal_or_nan
from pullback.check.find.source import FunctionSource
from pullback.check.rules._rule import Rule, SourceMatch
from pullback.check.rules._source import cotangents, saved, writes
from pullback.check.trial import forward, guarded, kept_from_being_freed, standard_cotangents
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


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
    binding = bind("g", cotangents)
    with guarded("backward"), kept_from_being_freed(run.outputs):
        torch.autograd.grad(run.roots, run.inputs, cotangents, allow_unused=True)
    changed = [what for (what, t), old in zip(watched, before, strict=True) if not equal_or_nan(old, t)]
    if changed:
        yield audit.finding(
            "PB203",
            "error",
            "wrong",
            f"the backward changes {' and '.join(dict.fromkeys(changed))} in place",
            case=audit.base,
            tail=[
                audit.outs,
                binding,
                "before = [t.detach().clone() for t in (*g, *inputs, *outs)]",
                "torch.autograd.grad(outs, inputs, g, allow_unused=True)",
                "print('unchanged:', [torch.equal(a, b) for a, b in zip(before, (*g, *inputs, *outs))])",
            ],
            hint="compute out of place: g * a for g.mul_(a); clone a tensor before writing to it",
        )


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    backward = source.methods.get("backward")
    if backward is None or not isinstance(source.node, ast.ClassDef):
        return
    for names, what in ((cotangents(source), "its cotangent"), (saved(backward), "the saved tensor")):
        for write in writes(backward, names):
            yield SourceMatch(
                write.line,
                f"the backward changes {what} {write.name} in place: {write.code}",
                "compute out of place: g * a for g.mul_(a); clone a tensor before writing to it",
                "warning",
            )


RULE = Rule(
    __doc__,
    runtime=_run,
    static=_static,
    blames="backward",
    kinds=("function",),
    needs_repeatable=False,
    needs_cpu=True,
)
