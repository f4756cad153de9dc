"""scatter-without-accumulation (PB812): the backward adds at saved indices, where the last of several equal ones wins.

## What it finds
In a Function that cannot be run here: `grad[index] += …` or `-= …` in a backward, where `index` is a saved tensor, and
`index_put_` with one and without `accumulate`. Where the function runs, PB101 tries repeated indices.

## Why it hurts
With the same index twice, one of the two terms is lost: `+=` on an indexed tensor reads, adds and writes once for each
place. Embeddings and gathered rows train on part of their gradient.

## Limits
A warning. A match proves that terms are lost if an index occurs twice; a mask, or indices that are all different, are
right. Names are taken for indices when they are unpacked from `ctx.saved_tensors` and nothing negates them or calls
them a mask.

## Bad
```python
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return cuda_kernels.gather(x, index)

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        gx = g.new_zeros(ctx.shape)
        gx[index] += g
        return gx, None
```

## Good
```python
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return cuda_kernels.gather(x, index)

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).index_add(0, index, g), None
```
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from pullback.check.find.source import FunctionSource
from pullback.check.rules._rule import SourceMatch, rule
from pullback.check.rules._source import saved, text

_IS_MASK = re.compile(r"mask|keep|kept|inside|valid|positive|selected", re.IGNORECASE)
_HINT = "use index_add, scatter_add or index_put(…, accumulate=True)"


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    backward = source.methods.get("backward")
    if backward is None or not isinstance(source.node, ast.ClassDef):
        return
    operands = [node.operand for node in ast.walk(backward) if isinstance(node, ast.UnaryOp)]
    negated = {operand.id for operand in operands if isinstance(operand, ast.Name)}
    indices = {name for name in saved(backward) - negated if not _IS_MASK.search(name)}
    for node in ast.walk(backward):
        match node:
            case ast.AugAssign(target=ast.Subscript(slice=ast.Name(id=name))) if name in indices:
                pass
            case ast.Call(func=ast.Attribute(attr="index_put_" | "index_put"), args=[place, _]) if (
                not node.keywords and any(isinstance(n, ast.Name) and n.id in indices for n in ast.walk(place))
            ):
                pass
            case _:
                continue
        yield SourceMatch(node.lineno, f"terms at equal indices are lost: {text(node)}", _HINT, "warning")


RULE = rule(__doc__, static=_static, kinds=("function",), stands_for="PB101")
