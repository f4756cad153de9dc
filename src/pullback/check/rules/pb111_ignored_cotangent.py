"""ignored-cotangent (PB111): the backward does not depend on a cotangent that it receives.

## What it finds
The rule multiplies each output's cotangent by -3 and keeps the others. If no gradient changes although that output
depends on an input, the backward ignores the cotangent. The source shows the simplest case: a parameter of `backward`
that is never read.

## Why it hurts
The gradient is correct only if the upstream gradient is 1. Loss weights, gradient accumulation and auxiliary losses
silently have no effect.

## Limits
An output marked non-differentiable may ignore its cotangent.

## Bad
```python
class SumAndProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x + y, x * y

    @staticmethod
    def backward(ctx, g_sum, g_product):
        return g_sum, g_sum
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
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.derivative.diagnosis import ignored_cotangents
from pullback.check.derivative.first_order import moves_output
from pullback.check.find.source import FunctionSource
from pullback.check.find.syntax import ast_text, names_read, positional_arguments, returns_a_value
from pullback.check.rules._rule import Rule, SourceMatch
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_HINT = "multiply the local derivative by the cotangent of every differentiable output"


def _run(audit: Audit) -> Iterator[Finding]:
    source = audit.subject.source
    if source is not None and next(_static(source), None) is not None:
        return  # said once, with the line
    result = audit.base_result
    if result is None or result.error or not result.run.differentiable:
        return
    for output in ignored_cotangents(audit, result):
        if not any(
            moves_output(audit.subject, result, input_index, output, audit.generator)
            for input_index in range(len(audit.names))
        ):
            continue
        yield audit.finding(
            "PB111",
            "error",
            "wrong",
            f"no gradient depends on the cotangent of output {result.run.differentiable[output]}",
            case=result.case,
            tail=[
                audit.outs,
                "for scale in (1.0, -3.0):",
                "    g = [torch.ones_like(o) for o in outs]",
                f"    g[{output}] = g[{output}] * scale",
                "    print(torch.autograd.grad(outs, inputs, g, retain_graph=True, allow_unused=True))",
            ],
            hint=_HINT,
        )


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    """Find parameters of backward that are never read, where no output is marked non-differentiable."""
    backward, forward = source.methods.get("backward"), source.methods.get("forward")
    if backward is None or forward is None:
        return
    marked = any("mark_non_differentiable" in ast_text(m) for m in source.methods.values())
    arguments = positional_arguments(backward)[1:]
    read = names_read(backward)
    unread = [argument for argument in arguments if argument.arg not in read]
    if not arguments or marked or (len(arguments) > 1 and len(unread) < len(arguments)):
        return  # with several, one may belong to an output that does not depend on any input
    if unread and "NotImplementedError" not in ast_text(backward) and returns_a_value(backward):
        yield SourceMatch(backward.lineno, f"backward never reads its cotangent {unread[0].arg}", _HINT)


RULE = Rule(
    __doc__,
    runtime=_run,
    of_optional=True,
    blames="backward",
    static=_static,
    column="eager",
    explains="ignored cotangent",
)
