"""none-cotangent-mishandled (PB112): the backward fails when a cotangent is undefined.

## What it finds
PyTorch leaves a cotangent undefined if the output is not used, or if its consumer returns no gradient. After
`ctx.set_materialize_grads(False)` such a cotangent arrives as `None`, and the backward must handle it. It is a warning
if the backward fails only when the cotangents of all of several outputs are undefined, which is rare.

## Why it hurts
Training raises `TypeError: unsupported operand type(s) for *: 'NoneType' …` whenever one of several outputs is not part
of the loss.

## Limits
The rule runs on the example alone.

## Bad
```python
class SumAndProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return x + y, x * y

    @staticmethod
    def backward(ctx, g_sum, g_product):
        x, y = ctx.saved_tensors
        return g_sum + y * g_product, g_sum + x * g_product
```

## Good
```python
class SumAndProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x + y, x * y

    @staticmethod
    def backward(ctx, g_sum, g_product):
        x, y = ctx.saved_tensors
        return g_sum + y * g_product, g_sum + x * g_product
```

## In the source: unguarded-none-cotangent (PB814)
If the function cannot be run, this rule looks for `ctx.set_materialize_grads(False)` and a backward with several
cotangents, one of which is read without ever being tested by `is None` or as a truth value. It is a warning: a match
proves that `None` reaches the line if that output is unused, but the line may pass it to a function that handles it. A
backward with a single cotangent is not reported, since PyTorch never calls it without one.

### Bad
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

### Good
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
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from pullback.check.find.source import FunctionSource
from pullback.check.rules._rule import Rule, SourceMatch
from pullback.check.rules._source import calls, cotangents
from pullback.check.trial import ForwardRun, Raised, forward, guarded, vjp
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_HINT = "test each cotangent for None, or remove set_materialize_grads(False): the backward then gets zeros"


class _NoGradient(torch.autograd.Function):
    """The identity whose backward has nothing to give: its input's cotangent is undefined."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> None:
        return None


def _run(audit: Audit) -> Iterator[Finding]:
    if not audit.backward_works:
        return
    for undefined in _patterns(len(audit.base_run.roots)):
        run = forward(audit.subject, audit.base)
        try:
            _backward_with(run, undefined)
        except Raised as error:
            which = ", ".join(str(run.differentiable[p]) for p in sorted(undefined))
            plural = "s" if len(undefined) > 1 else ""
            yield audit.finding(
                "PB112",
                "warning" if 1 < len(undefined) == len(run.roots) else "error",
                "wrong",
                f"with an undefined cotangent of output{plural} {which}, {error}",
                case=audit.base,
                tail=[
                    audit.outs,
                    "class NoGradient(torch.autograd.Function):",
                    "    @staticmethod",
                    "    def forward(ctx, x):",
                    "        return x.clone()",
                    "    @staticmethod",
                    "    def backward(ctx, g):",
                    "        return None",
                    f"passed = [NoGradient.apply(o) if k in {sorted(undefined)} else o for k, o in enumerate(outs)]",
                    "torch.autograd.grad(passed, inputs, [torch.ones_like(o) for o in outs], allow_unused=True)",
                ],
                hint=_HINT,
            )
            return


def _patterns(outputs: int) -> Iterator[set[int]]:
    """Yield which outputs get an undefined cotangent: each alone, then all but one, then all."""
    if outputs > 1:
        yield from ({k} for k in range(outputs))
    if outputs > 2:
        yield from ({*range(outputs)} - {k} for k in range(outputs))
    yield set(range(outputs))


def _backward_with(run: ForwardRun, undefined: set[int]) -> None:
    roots = run.roots
    with guarded("backward"):
        apply = cast(Callable[[Tensor], Tensor], _NoGradient.apply)
        passed = [apply(root) if k in undefined else root for k, root in enumerate(roots)]
    vjp(ForwardRun(run.inputs, passed, list(range(len(passed))), passed), [torch.ones_like(root) for root in roots])


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
                f"the cotangent {operand.id} may be None here, and the backward never checks",
                "test it, or remove set_materialize_grads(False)",
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


RULE = Rule(__doc__, runtime=_run, of_optional=True, static=_static, blames="backward", column="eager")
