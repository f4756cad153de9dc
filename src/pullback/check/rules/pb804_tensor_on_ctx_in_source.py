"""tensor-on-ctx-in-source (PB804): the source keeps an argument or a result as an attribute of ctx.

## What it finds
In a Function that cannot be run here: `ctx.name = x` in `forward` or `setup_context`, where `x` is an argument for
which the backward returns a gradient, and so a tensor, or what the forward returns. Where the function runs, PB201
looks at what is kept.

## Why it hurts
As PB201 says: changes in place go unnoticed, hooks for saved tensors do not see it, and an output on its own `ctx`
holds itself in memory.

## Limits
A warning. A match proves that the attribute holds that object, unless the name was given to something else in between.
What is computed in the forward, kept in lists or kept under another name is not seen.

## Bad
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return cuda_kernels.square(x)

    @staticmethod
    def backward(ctx, g):
        return cuda_kernels.square_backward(g, ctx.x)
```

## Good
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return cuda_kernels.square(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return cuda_kernels.square_backward(g, x)
```
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.check.find.source import FunctionSource
from pullback.check.find.syntax import own_nodes, positional_arguments
from pullback.check.rules._rule import SourceMatch, rule
from pullback.check.rules._source import differentiated, inputs

_HINT = "pass tensors to ctx.save_for_backward and read them from ctx.saved_tensors, once"


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    for name in ("forward", "setup_context"):
        method = source.methods.get(name)
        if method is None or not isinstance(source.node, ast.ClassDef):
            continue
        tensors = _tensors(source, method)
        for attribute, value in _kept(method):
            if value.id in tensors:
                what = f"the forward keeps ctx.{attribute}, {tensors[value.id]}, outside of save_for_backward"
                yield SourceMatch(value.lineno, what, _HINT, "warning")


def _tensors(source: FunctionSource, method: ast.FunctionDef) -> dict[str, str]:
    """Return the names in a method that surely hold tensors, described as "the argument x" or "a result"."""
    arguments = {name: f"the argument {name}" for name in differentiated(source)}
    parameters = [argument.arg for argument in positional_arguments(method)]
    if method.name == "setup_context" and len(parameters) == 3:
        return {parameters[2]: "the result", **_unpacked(method, parameters[1], inputs(source), arguments)}
    results = [node.value for node in own_nodes(method) if isinstance(node, ast.Return)]
    values = [v for r in results for v in (r.elts if isinstance(r, ast.Tuple) else [r])]
    return {v.id: "a result" for v in values if isinstance(v, ast.Name)} | arguments


def _unpacked(method: ast.FunctionDef, packed: str, names: list[str], arguments: dict[str, str]) -> dict[str, str]:
    """Return the arguments by the names that `a, b = inputs` gives to them."""
    found: dict[str, str] = {}
    for node in own_nodes(method):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Name(id=value)) if value == packed:
                pairs = zip(targets, names, strict=False)
                found |= {t.id: arguments[n] for t, n in pairs if isinstance(t, ast.Name) and n in arguments}
            case _:
                pass
    return found


def _kept(method: ast.FunctionDef) -> Iterator[tuple[str, ast.Name]]:
    """Yield each attribute of `ctx` that is given a name's value, and that name."""
    ctx = next((argument.arg for argument in positional_arguments(method)), "")
    assignments = [node for node in own_nodes(method) if isinstance(node, ast.Assign)]
    for to, value in (pair for node in assignments for target in node.targets for pair in _pairs(target, node.value)):
        match to, value:
            case ast.Attribute(value=ast.Name(id=owner), attr=attribute), ast.Name() if owner == ctx:
                yield attribute, value
            case _:
                pass


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        yield from zip(target.elts, value.elts, strict=False)
    else:
        yield target, value


RULE = rule(__doc__, static=_static, kinds=("function",), stands_for="PB201")
