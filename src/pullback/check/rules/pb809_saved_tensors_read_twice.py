"""saved-tensors-read-twice (PB809): the source of the backward reads ctx.saved_tensors more than once.

## What it finds
In a Function that cannot be run here: two reads of `ctx.saved_tensors` on one way through the backward, or one inside
of a loop. Where the function runs, PB411 runs it under a checkpoint.

## Why it hurts
Each read unpacks every tensor anew: hooks that offload or decompress work twice, and
`torch.utils.checkpoint(use_reentrant=False)` raises ("Unpack is being triggered for a tensor that was already unpacked
once").

## Limits
A warning. Reads in the two branches of an `if` count once, and so does a read behind a `return`. Reads in functions
that the backward hands its context to are not seen.

## Bad
```python
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return cuda_kernels.product(x, y)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[1], g * ctx.saved_tensors[0]
```

## Good
```python
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return cuda_kernels.product(x, y)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x
```
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from pullback.check.find.source import FunctionSource
from pullback.check.rules._rule import SourceMatch, rule


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    backward = source.methods.get("backward")
    if backward is None or not isinstance(source.node, ast.ClassDef):
        return
    reads = _in_turn(backward.body)
    if len(reads) > 1:
        yield SourceMatch(
            reads[1],
            f"ctx.saved_tensors is read again, after line {reads[0]}",
            "unpack it once, in the first line: x, y = ctx.saved_tensors",
            "warning",
        )


def _in_turn(body: Sequence[ast.stmt]) -> list[int]:
    """Return the lines of the reads on the way through some statements that has most."""
    lines: list[int] = []
    longest: list[int] = []
    for statement in body:
        match statement:
            case ast.If(test=test, body=then, orelse=other):
                lines += _reads(test)
                ways = sorted(((_in_turn(way), _leaves(way)) for way in (then, other)), key=lambda way: len(way[0]))
                longest = max([longest, *(lines + way for way, _ in ways)], key=len)
                going_on = [way for way, leaves in ways if not leaves]
                if not going_on:
                    return longest
                lines = lines + going_on[-1]
            case ast.For(body=inner) | ast.While(body=inner):
                lines = lines + 2 * _in_turn(inner)
            case ast.With(body=inner) | ast.Try(body=inner):
                lines = lines + _in_turn(inner)
            case _:
                lines = lines + _reads(statement)
    return max(longest, lines, key=len)


def _reads(node: ast.AST) -> list[int]:
    return [n.lineno for n in ast.walk(node) if isinstance(n, ast.Attribute) and n.attr == "saved_tensors"]


def _leaves(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Raise)


RULE = rule(__doc__, static=_static, kinds=("function",), stands_for="PB411")
