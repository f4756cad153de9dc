"""tensor-on-ctx (PB201): a tensor is kept as an attribute of ctx instead of by save_for_backward.

## What it finds
Attributes of `ctx` that hold tensors after a forward, also in lists, tuples and dicts. The finding says whether each
tensor is an input, an output or an intermediate.

## Why it hurts
The tensor bypasses `save_for_backward`. An in-place change between forward and backward is not detected, and the
gradient is silently wrong. Saved-tensor hooks (offloading, checkpointing, compression) do not see the tensor, and it is
not freed after the backward. An *output* on its own `ctx` is also a reference cycle, which holds memory until the
garbage collector runs.

## Limits
It is a warning for floating-point tensors, and an info for integers and masks. Tensors inside other objects, and
tensors that the backward puts on `ctx`, are not seen.

## Bad
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.x
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

## In the source: tensor-on-ctx-in-source (PB804)
If the function cannot be run, this rule looks for `ctx.name = x` in `forward` or `setup_context`, where `x` is an
output, or an argument for which the backward returns a gradient and which is therefore a tensor. It is a warning: a
match proves that the attribute holds that object, unless the name was rebound in between. Intermediates, tensors in
lists and tensors under another name are not seen.

### Bad
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

### Good
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
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback._torch import tree_leaves
from pullback.check.find.source import FunctionSource
from pullback.check.find.syntax import own_nodes, positional_arguments
from pullback.check.rules._residuals import origin
from pullback.check.rules._rule import Rule, SourceMatch
from pullback.check.rules._source import differentiated, inputs
from pullback.check.trial import ForwardRun, forward
from pullback.dtypes import has_derivative
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    run = forward(audit.subject, audit.base)
    ctx = _context(run, audit.subject.target)
    held = {} if ctx is None else _held(ctx)
    for floating in (True, False):
        kept = [f"ctx.{name} ({origin(t, run)})" for name, t in held.items() if has_derivative(t) == floating]
        if kept:
            yield audit.finding(
                "PB201",
                "warning" if floating else "info",
                "wrong",
                f"the forward keeps {' and '.join(kept)} outside of save_for_backward",
                case=audit.base,
                tail=[audit.outs, "print('kept on ctx:', vars(outs[0].grad_fn))"],
                hint="pass tensors to ctx.save_for_backward and read them from ctx.saved_tensors, once",
            )


def _context(run: ForwardRun, function: type[torch.autograd.Function]) -> Any:
    """Return the node of the forward, which is its `ctx`; views and casts may lie above it."""
    waiting = [root.grad_fn for root in run.roots]
    seen = set()
    while waiting:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return node if type(node).__name__ == f"{function.__name__}Backward" else None
        waiting += [ahead for ahead, _ in node.next_functions]
    return None


def _held(ctx: Any) -> dict[str, Tensor]:
    """Return, of each attribute, the first tensor in it."""
    leaves = {name: [v for v in tree_leaves(value)[0] if isinstance(v, Tensor)] for name, value in vars(ctx).items()}
    return {name: found[0] for name, found in leaves.items() if found}


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


RULE = Rule(__doc__, runtime=_run, static=_static, kinds=("function",), needs_repeatable=False, needs_cpu=True)
