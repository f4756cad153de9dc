"""wrong-gradient-count (PB103): backward does not return one gradient for each argument of forward.

## What it finds
`backward` must return one value for each argument of `forward` (without `ctx`), and `None` for arguments that have no
gradient. Fewer values, or extra ones that are not `None`, raise at the first backward; trailing extra `None`s are
legal. The source alone shows the mistake if a `return` of the backward is a tuple of fixed length.

## Why it hurts
The first backward raises, often long after the forward was tested.

## Limits
The static half does not examine a backward that builds its tuple in another way. It does not count arguments that have
a default, since gradients must match the arguments that a call passes. An extra value that is a name may hold `None`.

## Bad
```python
class Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y
```

## Good
```python
class Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x
```
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.derivative.recorder import record_base
from pullback.check.find.source import FunctionSource
from pullback.check.find.syntax import own_nodes, positional_arguments, returns_a_value
from pullback.check.rules._rule import Rule, SourceMatch
from pullback.report.model import Finding
from pullback.report.text import count

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_HINT = "return one value per argument of forward, in order, None for those without a gradient"


def _run(audit: Audit) -> Iterator[Finding]:
    for call in record_base(audit.subject, audit.base):
        extra = call.returned[len(call.needs) :]
        if len(call.returned) < len(call.needs) or any(value is not None for value in extra):
            yield audit.finding(
                "PB103",
                "error",
                "wrong",
                _count(len(call.returned), len(call.needs)),
                case=audit.base,
                tail=[
                    audit.outs,
                    "torch.autograd.backward(outs, [torch.ones_like(o) for o in outs])",
                ],
                hint=_HINT,
            )
            return


def _count(returned: int, expected: int) -> str:
    return f"backward returned {count(returned, 'gradient')} for {count(expected, 'argument')} of forward"


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    forward, backward = source.methods.get("forward"), source.methods.get("backward")
    if forward is None or backward is None or forward.args.vararg or forward.args.kwonlyargs:
        return
    if not returns_a_value(backward):
        return  # nothing but None: of outputs that are marked non-differentiable, which it is never called for
    most = len(positional_arguments(forward)) - (0 if "setup_context" in source.methods else 1)
    fewest = most - len(forward.args.defaults)
    for node in own_nodes(backward):
        if not isinstance(node, ast.Return) or not isinstance(node.value, ast.Tuple):
            continue
        values = node.value.elts
        if any(isinstance(value, ast.Starred) for value in values):
            continue
        if len(values) < fewest or any(not _is_none(value) for value in values[most:]):
            expected = fewest if len(values) < fewest else most
            yield SourceMatch(node.lineno, _count(len(values), expected), _HINT)


def _is_none(value: ast.expr) -> bool:
    """Whether a value is None, or a name that may be bound to it."""
    return isinstance(value, ast.Name) or (isinstance(value, ast.Constant) and value.value is None)


RULE = Rule(
    __doc__,
    runtime=_run,
    blames="backward",
    static=_static,
    kinds=("function",),
    column="eager",
    needs_repeatable=False,
)
