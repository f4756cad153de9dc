"""cut-in-backward-source (PB808): the source of the backward takes a tensor out of the autograd graph.

## What it finds
In a Function that cannot be run here: `.item()`, `.numpy()`, `.tolist()`, `.data`, `.detach()`, `float(…)` on the
cotangent or a saved tensor in a backward, and `no_grad` around part of it, unless `once_differentiable` says that
there is no second derivative. Where the function runs, PB604 and PB401 measure what is lost.

## Why it hurts
A second derivative misses what runs through the call, and nothing raises: Hessians, gradient penalties and
meta-learning are silently wrong.

## Limits
A warning. A match proves that the graph is left if the line is reached, not that the second derivative depends on it:
a sign or a mask has none. It does not look into functions that the backward calls; a kernel called from there leaves
the graph too.

## Bad
```python
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return cuda_kernels.scale(x, scale)

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        return g * scale.item(), (g * x).sum()
```

## Good
```python
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return cuda_kernels.scale(x, scale)

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        return g * scale, (g * x).sum()
```
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.check.find.source import FunctionSource
from pullback.check.find.syntax import decorator_names
from pullback.check.rules._rule import SourceMatch, rule
from pullback.check.rules._source import cotangents, saved, text

_LEAVES = frozenset({"item", "numpy", "tolist", "detach", "data"})
_NUMBERS = frozenset({"float", "int", "complex"})


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    backward = source.methods.get("backward")
    if backward is None or not isinstance(source.node, ast.ClassDef):
        return
    if "once_differentiable" in decorator_names(backward):
        return
    tensors = {*cotangents(source), *saved(backward)}
    for node in ast.walk(backward):
        found = _cut(node, tensors)
        if found is not None:
            yield SourceMatch(
                found.lineno,
                f"the backward leaves the autograd graph, and with it its second derivative: {text(found)}",
                "stay in differentiable operations on what was saved, or use once_differentiable",
                "warning",
            )


def _cut(node: ast.AST, tensors: set[str]) -> ast.expr | None:
    match node:
        case ast.Attribute(value=ast.Name(id=name), attr=attr) if name in tensors and attr in _LEAVES:
            return node
        case ast.Call(func=ast.Name(id=function), args=[ast.Name(id=name)]) if name in tensors and function in _NUMBERS:
            return node
        case ast.With(items=[ast.withitem(context_expr=ast.Call(func=called) as call)]) if "no_grad" in text(called):
            return call
        case _:
            return None


RULE = rule(__doc__, static=_static, kinds=("function",), stands_for="PB604")
