"""factory-without-device (PB813): a method creates a tensor on the default device.

## What it finds
`torch.zeros`, `ones`, `full`, `empty`, `eye`, `rand`, `randn` and `linspace` in the methods of a Function, without
`device=`, where the result is not moved (`.to(…)`, `.cuda(…)`, `.type_as(…)`) in the same expression.

## Why it hurts
If the inputs are on a GPU, this tensor is on the CPU, and the next operation on both raises. In a backward the error
comes only with the first training step.

## Limits
It is an info, from the source alone: a match proves on which device the tensor is made, but it may never be combined
with one on another device. A later line may move it, or the default device may have been changed.

## Bad
```python
class Shifted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + torch.ones(x.shape)

    @staticmethod
    def backward(ctx, g):
        return g
```

## Good
```python
class Shifted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + torch.ones(x.shape, dtype=x.dtype, device=x.device)

    @staticmethod
    def backward(ctx, g):
        return g
```
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.check.find.source import FunctionSource
from pullback.check.find.syntax import dotted
from pullback.check.rules._rule import Rule, SourceMatch
from pullback.check.rules._source import calls, text

_FACTORIES = frozenset(
    f"torch.{name}" for name in ("zeros", "ones", "full", "empty", "eye", "rand", "randn", "linspace")
)
_MOVES = frozenset({"to", "cuda", "type_as", "cpu"})


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    for name, method in source.methods.items() if isinstance(source.node, ast.ClassDef) else ():
        moved = {id(node.value) for node in ast.walk(method) if isinstance(node, ast.Attribute) and node.attr in _MOVES}
        for call, _ in calls(method):
            placed = {keyword.arg for keyword in call.keywords} & {"device", "out", None}
            if dotted(call.func) in _FACTORIES and not placed and id(call) not in moved and not _is_scalar(call):
                yield SourceMatch(
                    call.lineno,
                    f"{name} makes a tensor on the default device: {text(call)}",
                    "pass device=x.device, or use x.new_zeros and the like",
                    "info",
                )


def _is_scalar(call: ast.Call) -> bool:
    """Whether it has no dimensions: such a tensor may meet others on any device."""
    return bool(call.args) and isinstance(call.args[0], ast.Tuple) and not call.args[0].elts


RULE = Rule(__doc__, static=_static, kinds=("function",))
