"""unguarded-none-cotangent (PB814): cotangents may be None, and the source of the backward does not look.

## What it finds
In a Function that cannot be run here: `ctx.set_materialize_grads(False)`, and a backward of several cotangents one of
which it reads without a single `is None` (or truth) test of it. Where the function runs, PB112 uses each output alone.

## Why it hurts
An output that nobody uses has None for a cotangent then, and arithmetic on it raises a `TypeError`.

## Limits
A warning. A match proves that None reaches the line if that output is unused; it may be handed to a function that
copes. With one cotangent nothing is reported: the backward is not called without any.

## Bad
```python
class SumAndProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return cuda_kernels.sum_and_product(x, y)

    @staticmethod
    def backward(ctx, g_sum, g_product):
        x, y = ctx.saved_tensors
        return g_sum + g_product * y, g_sum + g_product * x
```

## Good
```python
class SumAndProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return cuda_kernels.sum_and_product(x, y)

    @staticmethod
    def backward(ctx, g_sum, g_product):
        x, y = ctx.saved_tensors
        return g_sum + g_product * y, g_sum + g_product * x
```
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.check.find.source import FunctionSource
from pullback.check.rules._rule import SourceMatch, rule
from pullback.check.rules._source import calls, cotangents


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    backward, names = source.methods.get("backward"), cotangents(source)
    if backward is None or len(names) < 2 or not any(map(_unmaterialised, source.methods.values())):
        return
    tested = {name.id for test in _tests(backward) for name in ast.walk(test) if isinstance(name, ast.Name)}
    operands = [side for node in ast.walk(backward) if isinstance(node, ast.BinOp) for side in (node.left, node.right)]
    for operand in operands:
        if isinstance(operand, ast.Name) and operand.id in set(names) - tested:
            yield SourceMatch(
                operand.lineno,
                f"the cotangent {operand.id} may be None here, and the backward never asks",
                "test it, or leave out set_materialize_grads(False)",
                "warning",
            )
            return


def _unmaterialised(method: ast.FunctionDef) -> bool:
    return any(
        name == "set_materialize_grads" and isinstance(call.args[0], ast.Constant) and call.args[0].value is False
        for call, name in calls(method)
        if call.args
    )


def _tests(method: ast.FunctionDef) -> Iterator[ast.expr]:
    """Yield the conditions in a method, and the expressions compared in it."""
    for node in ast.walk(method):
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            yield node.test
        elif isinstance(node, ast.Compare | ast.BoolOp):
            yield node


RULE = rule(__doc__, static=_static, kinds=("function",), stands_for="PB112")
