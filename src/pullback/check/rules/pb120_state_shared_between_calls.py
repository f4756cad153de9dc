"""state-shared-between-calls (PB120): the gradient or the output of a call depends on other calls.

## What it finds
Two forwards run on different inputs, then the backward of the first. It must give the same gradient as when the first
call runs alone. State on the class or in a module breaks this. Of interpreted Triton kernels with given inputs, the
first output in the process must equal those of two later calls. A counter that no kernel resets breaks this.

## Why it hurts
A layer that is used twice in a model silently trains on the gradient of another call, and so does data parallelism in
threads.

## Limits
Functions with a random generator of their own may differ without sharing state. Two backwards over one graph are PB206.

## Bad
```python
class XSin(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        XSin.x = x
        return x * torch.sin(x)

    @staticmethod
    def backward(ctx, g):
        return g * (torch.sin(XSin.x) + XSin.x * torch.cos(XSin.x))
```

## Good
```python
class XSin(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sin(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (torch.sin(x) + x * torch.cos(x))
```

## In the source: state-on-class-in-source (PB810)
If the function cannot be run, this rule looks for an attribute of the class, or a global name, that the forward assigns
and the backward reads. It is a warning: a match proves that calls share the attribute, but not that they ever assign
different values.

### Bad
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

### Good
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
from typing import TYPE_CHECKING

from torch import Tensor

from pullback.check.case import Case
from pullback.check.cases.repro import bind, definition
from pullback.check.derivative.agreement import TensorDifference, difference
from pullback.check.find.source import FunctionSource
from pullback.check.rules._rule import Rule, SourceMatch
from pullback.check.trial import Raised, forward, reseed, standard_cotangents, vjp
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_HINT = "save the tensors of the backward by ctx.save_for_backward, and do not change them"


def _run(audit: Audit) -> Iterator[Finding]:
    yield from _since_first(audit)
    if not audit.backward_works or difference(_alone(audit), _alone(audit), rounding=0.0):
        return  # not even the same call twice gives the same: determinism is another property
    where = _interleaved(audit)
    if where is not None:
        yield audit.finding(
            "PB120",
            "error",
            "wrong",
            f"after a forward on other values, the gradient of {audit.names[where.tensor_index]} changes: {where}",
            case=audit.base,
            tail=[
                *definition("value_at", audit.base, [audit.outs, "return outs"]),
                bind("g", standard_cotangents(audit.base_run.roots)),
                "print('alone:', torch.autograd.grad(value_at(inputs), inputs, g, allow_unused=True))",
                "outs = value_at(inputs)",
                "value_at([x.flatten().roll(1).view(x.shape) if x.numel() > 1 else x / 2 for x in inputs])",
                "print('after another forward:', torch.autograd.grad(outs, inputs, g, allow_unused=True))",
            ],
            hint=_HINT,
        )


def _since_first(audit: Audit) -> Iterator[Finding]:
    where = audit.changed_since_first
    if where is not None:
        yield audit.finding(
            "PB120",
            "error",
            "wrong",
            f"equal calls after the first one in a process return another output {where.tensor_index}: {where}",
            case=audit.base,
            tail=[
                audit.outs,
                "print('first:', outs)",
                *definition("value_at", audit.base, [audit.outs, "return outs"]),
                "print('second:', value_at(inputs))",
            ],
            hint="make or reset in each call what the kernels count in or add to",
        )


def _alone(audit: Audit) -> list[Tensor | None]:
    run = forward(audit.subject, audit.base)
    reseed()
    return vjp(run, standard_cotangents(run.roots))


def _interleaved(audit: Audit) -> TensorDifference | None:
    """Run two forwards, then the backward of the first."""
    run = forward(audit.subject, audit.base)
    try:
        forward(audit.subject, _other_values(audit.base), seed=1)  # with other random numbers
    except Raised:
        return None
    reseed()
    late = vjp(run, standard_cotangents(run.roots))
    return difference(_alone(audit), late)


def _other_values(case: Case) -> Case:
    """Return the case with its elements in another order: no value that the function might refuse."""
    return case.map_inputs(lambda t: t.flatten().roll(1).reshape(t.shape) if t.numel() > 1 else t / 2, "other values")


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


RULE = Rule(__doc__, runtime=_run, static=_static, column="eager")
