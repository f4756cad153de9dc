"""graph-kept-by-backward (PB815): a nested backward retains its graph.

## What it finds
`retain_graph=True` in the backward of a Function, in a call of `torch.autograd.grad`, `torch.autograd.backward` or
`.backward()`.

## Why it hurts
The call that uses the inner graph does not free it, nor its saved tensors. If anything still refers to the graph, such
as tensors on `ctx`, memory grows with each step.

## Limits
It is a warning, from the source alone: a match proves that the call retains the graph, but not for how long. A graph
that is built in the same backward and used twice is freed when the backward returns.

## Bad
```python
class Checkpointed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.out = ctx.x.sin()
        return ctx.out.detach()

    @staticmethod
    def backward(ctx, g):
        return torch.autograd.grad(ctx.out, ctx.x, g, retain_graph=True)[0]
```

## Good
```python
class Checkpointed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            out = leaf.sin()
        return torch.autograd.grad(out, leaf, g)[0]
```
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.check.find.source import FunctionSource
from pullback.check.rules._rule import Rule, SourceMatch
from pullback.check.rules._source import calls, text


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    backward = source.methods.get("backward")
    for call, name in calls(backward) if backward is not None else ():
        if name in ("grad", "backward") and any(map(_keeps, call.keywords)):
            yield SourceMatch(
                call.lineno,
                f"the backward keeps the graph that it differentiates: {text(call)}",
                "build the graph in the backward, and let the call free it",
                "warning",
            )


def _keeps(keyword: ast.keyword) -> bool:
    return keyword.arg == "retain_graph" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True


RULE = Rule(__doc__, static=_static, kinds=("function",))
