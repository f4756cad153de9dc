"""removed-api (PB802): the source uses an API that PyTorch has removed or deprecated.

## What it finds
In the methods of a Function: functions that PyTorch has removed or that only raise (`torch.eig`, `torch.symeig`,
`torch.solve`, `torch.lstsq`, `torch.matrix_rank`, `torch.rfft`, `torch.fft(…)`, …). As warnings: `ctx.saved_variables`,
the old name of `ctx.saved_tensors`, and `Variable(…)`, which has had no effect since PyTorch 0.4.

## Why it hurts
A line that calls a removed function raises as soon as it is reached, which is late in a backward. `ctx.saved_variables`
still works with a `DeprecationWarning`, which raises if warnings are errors. `Variable(x.data)`, once the usual way to
write a backward, cuts the graph.

## Limits
The line raises if it is reached. A branch for old versions of PyTorch is recognised only as a `try`, not as `if version
< …`. A module that is bound to the name `torch` is taken for PyTorch. `pullback check --fix` renames `saved_variables`
and changes nothing else of these, since `Variable(…)` may cut the graph on purpose.

## Bad
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_variables
        return 2 * g * x
```

## Good
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x
```
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.check.find.source import FunctionSource
from pullback.check.find.syntax import dotted
from pullback.check.rules._rule import Rule, SourceMatch

_GONE = {
    **dict.fromkeys(("torch.eig", "torch.symeig", "torch.lstsq", "torch.matrix_rank", "torch.solve"), "torch.linalg"),
    **dict.fromkeys(("torch.gels", "torch.gesv", "torch.potrf", "torch.potrs", "torch.trtrs"), "torch.linalg"),
    **dict.fromkeys(("torch.fft", "torch.ifft", "torch.rfft", "torch.irfft"), "torch.fft.fft and its siblings"),
}
_OLD = ("Variable", "autograd.Variable", "torch.autograd.Variable")


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    if not isinstance(source.node, ast.ClassDef):
        return
    for method in source.methods.values():
        tried = {id(inner) for node in ast.walk(method) if isinstance(node, ast.Try) for inner in ast.walk(node)}
        for node in ast.walk(method):
            if id(node) not in tried and (match := _match(node)) is not None:
                yield match


def _match(node: ast.AST) -> SourceMatch | None:
    if isinstance(node, ast.Attribute) and node.attr == "saved_variables":
        what = "ctx.saved_variables is the old name of ctx.saved_tensors, and deprecated"
        return SourceMatch(node.lineno, what, "read ctx.saved_tensors", "warning")
    called = dotted(node.func) if isinstance(node, ast.Call) else ""
    if isinstance(node, ast.Call) and called in _GONE:
        return SourceMatch(node.lineno, f"{called}(…) was removed from PyTorch", f"use {_GONE[called]}")
    if isinstance(node, ast.Call) and called in _OLD:
        return SourceMatch(
            node.lineno, "Variable(…) has had no effect since PyTorch 0.4", "use the tensor itself", "warning"
        )
    return None


RULE = Rule(__doc__, static=_static, kinds=("function",), fix="style")
