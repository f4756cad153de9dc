"""state-on-class-in-source (PB810): the forward leaves something on the class for the backward to read.

## What it finds
In a Function that cannot be run here: an attribute of the class, or a global name, that the forward assigns and the
backward reads. Where the function runs, PB120 runs two forwards before a backward.

## Why it hurts
There is one class and there are many calls: with the layer used twice, or in two threads, the backward of one call
reads what another left.

## Limits
A warning. A match proves that calls share the attribute, not that they ever give it different values.

## Bad
```python
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        Scale.scale = scale
        return cuda_kernels.scale(x, scale)

    @staticmethod
    def backward(ctx, g):
        return g * Scale.scale, None
```

## Good
```python
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return cuda_kernels.scale(x, scale)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.scale, None
```
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.check.find.source import FunctionSource
from pullback.check.rules._rule import SourceMatch, rule


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    forward, backward = source.methods.get("forward"), source.methods.get("backward")
    if forward is None or backward is None:
        return
    read = {place for place, _ in _shared(source.name, backward, ast.Load)}
    for place, line in _shared(source.name, forward, ast.Store):
        if place in read:
            yield SourceMatch(
                line,
                f"the forward assigns {place}, which every call shares, and the backward reads it",
                "keep it on ctx",
                "warning",
            )


def _shared(cls: str, method: ast.FunctionDef, context: type[ast.expr_context]) -> Iterator[tuple[str, int]]:
    """Yield the attributes of the class and the global names that a method assigns, or reads, with their lines."""
    global_names = {name for node in ast.walk(method) if isinstance(node, ast.Global) for name in node.names}
    for node in ast.walk(method):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=attr, ctx=ctx) if owner in (cls, "cls"):
                place = f"{cls}.{attr}"
            case ast.Name(id=place, ctx=ctx) if context is ast.Load or place in global_names:
                pass
            case _:
                continue
        if isinstance(ctx, context):
            yield place, node.lineno


RULE = rule(__doc__, static=_static, kinds=("function",), stands_for="PB120")
