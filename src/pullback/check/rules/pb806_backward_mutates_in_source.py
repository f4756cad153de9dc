"""backward-mutates-in-source (PB806): the source of the backward writes to its cotangent or to a saved tensor.

## What it finds
In a Function that cannot be run here: `g.mul_(…)`, `g[…] = …`, `g += …` on an argument of `backward`, or on a name
that it unpacks from `ctx.saved_tensors`. Where the function runs, PB203 compares the tensors.

## Why it hurts
The cotangent belongs to a sibling branch as well, and saved inputs to the rest of the model.

## Limits
A warning: a match proves the write if the line is reached, but what was saved may be a copy that is nobody else's. A
name that is given another value first is left out.

## Bad
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

## Good
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

from pullback.check.find.source import FunctionSource
from pullback.check.rules._rule import SourceMatch, rule
from pullback.check.rules._source import cotangents, saved, writes


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    backward = source.methods.get("backward")
    if backward is None or not isinstance(source.node, ast.ClassDef):
        return
    for names, what in ((cotangents(source), "its cotangent"), (saved(backward), "the saved tensor")):
        for write in writes(backward, names):
            yield SourceMatch(
                write.line,
                f"the backward changes {what} {write.name} in place: {write.code}",
                "compute out of place: g * a for g.mul_(a); clone what has to be written to",
                "warning",
            )


RULE = rule(__doc__, static=_static, kinds=("function",), stands_for="PB203")
