"""write-behind-autograd (PB807): a method writes to a tensor through `.data` or `.detach()`.

## What it finds
`x.data.mul_(…)`, `x.data = …`, `x.detach()[…] = …` and the like in the methods of a Function, where `x` is an argument
of the forward that gets a gradient, a cotangent or a saved tensor.

## Why it hurts
PyTorch counts the in-place changes of a tensor, and raises in a backward whose saved tensors have changed. A write
through `.data` is not counted, so the gradient may be silently wrong. `mark_dirty` does not help either.

## Limits
It is a warning: a match proves the write if the line is reached, but other code may never read the tensor afterwards.
Buffers without a gradient, such as running means, may be updated this way and are not reported, and neither are names
that are rebound first.

## Bad
```python
class Normalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.data.div_(x.norm())
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g
```

## Good
```python
class Normalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        norm = x.norm()
        out = x / norm
        ctx.save_for_backward(out, norm)
        return out

    @staticmethod
    def backward(ctx, g):
        out, norm = ctx.saved_tensors
        return (g - out * (g * out).sum()) / norm
```
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.check.find.source import FunctionSource
from pullback.check.rules._rule import Rule, SourceMatch
from pullback.check.rules._source import cotangents, differentiated, saved, writes


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    if not isinstance(source.node, ast.ClassDef):
        return
    backward = source.methods.get("backward")
    owned = {"forward": differentiated(source)}
    if backward is not None:
        owned["backward"] = [*cotangents(source), *saved(backward)]
    for name, method in source.methods.items():
        for write in writes(method, owned.get(name, ())):
            if write.bypasses:
                yield SourceMatch(
                    write.line,
                    f"the {name} writes to {write.name} where autograd does not see it: {write.code}",
                    "compute out of place; or write to the tensor itself and call ctx.mark_dirty",
                    "warning",
                )


RULE = Rule(__doc__, static=_static, kinds=("function",))
