"""unmarked-mutation-in-source (PB805): the source of the forward writes to an input that it does not mark.

## What it finds
In a Function that cannot be run here: `x.mul_(…)`, `x[…] = …`, `x += …` in `forward` on an argument for which the
backward returns a gradient, and no `mark_dirty` anywhere in the class. Where the function runs, PB202 compares the
inputs.

## Why it hurts
The caller's tensor changes behind autograd's back: whatever saved it computes a wrong gradient.

## Limits
A warning. A match proves the write if the line is reached. An argument that the method gives another value first (`x =
x.clone()`) is left out, also if that happens in one branch only. Writes by kernels that take a pointer, or by `out=`,
are not seen.

## Bad
```python
class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.clamp_(min=0)
        ctx.save_for_backward(x)
        return cuda_kernels.copy(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x > 0)
```

## Good
```python
class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clamp(min=0)
        ctx.save_for_backward(x)
        return cuda_kernels.copy(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x > 0)
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.find.source import FunctionSource
from pullback.check.find.syntax import ast_text
from pullback.check.rules._rule import SourceMatch, rule
from pullback.check.rules._source import differentiated, writes


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    forward = source.methods.get("forward")
    if forward is None or any("mark_dirty" in ast_text(method) for method in source.methods.values()):
        return
    for write in writes(forward, differentiated(source)):
        yield SourceMatch(
            write.line,
            f"the forward changes {write.name} in place and does not mark it as dirty: {write.code}",
            "work on a copy, or call ctx.mark_dirty on the input and return it",
            "warning",
        )


RULE = rule(__doc__, static=_static, kinds=("function",), stands_for="PB202")
