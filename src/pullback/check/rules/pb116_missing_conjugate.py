"""missing-conjugate (PB116): the gradient of a complex input lacks a conjugate.

## What it finds
PyTorch's gradient of a complex input is the conjugate Wirtinger derivative: the backward of a holomorphic f is `g *
f'(x).conj()`. The rule reports a gradient that is wrong but correct once conjugated, or that is wrong only for complex
inputs.

## Why it hurts
Every step points in a wrong direction that depends on the phase of the data.

## Limits
It is an info if the source never mentions complex numbers and the forward accepts them: rejecting complex inputs is as
good a fix as supporting them.

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
        return g * y, g * x

def inputs():
    return tuple(torch.randn(4, dtype=torch.complex128, requires_grad=True) for _ in range(2))
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
        return g * y.conj(), g * x.conj()

def inputs():
    return tuple(torch.randn(4, dtype=torch.complex128, requires_grad=True) for _ in range(2))
```
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.cases import layouts
from pullback.check.derivative.diagnosis import cause
from pullback.check.derivative.first_order import FirstOrder
from pullback.check.rules._reproduction import gradient_and_quotient
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


_COMPLEX = re.compile(r"\.conj\(|is_complex|complex\d|view_as_complex|\.mH\b|torch\.complex")


def _run(audit: Audit) -> Iterator[Finding]:
    if audit.intent is not None or audit.subject.kind == "callable":
        return
    given = any(t.is_complex() for t in audit.base.tensors)
    real = audit.base_result
    if not given and (real is None or real.error or real.wrong):
        return
    result = real if given else audit.compare(layouts.made_complex(audit.base), elements=3)
    if result is None or not result.wrong or result.error:
        return
    if given and not _only_phase(audit, result):
        return
    comparison = result.wrong[0]
    claims = given or _speaks_of_complex(audit)
    name = result.case.names[result.case.wrt[comparison.input_index]]
    yield audit.finding(
        "PB116",
        "error" if claims else "info",
        "wrong" if claims else "unsupported",
        f"for complex inputs the gradient of {name} is not the conjugate derivative",
        case=result.case,
        evidence=audit.evidence(result, comparison),
        tail=gradient_and_quotient(audit, result, comparison),
        hint="multiply the cotangent by the conjugate of the derivative, or refuse complex inputs in forward",
    )


def _only_phase(audit: Audit, result: FirstOrder) -> bool:
    """Whether conjugating the gradient would make it right."""
    return all(cause(audit, result, c) == "missing conjugate" for c in result.wrong)


def _speaks_of_complex(audit: Audit) -> bool:
    source = audit.subject.source
    return source is not None and _COMPLEX.search(ast.unparse(source.node)) is not None


RULE = Rule(
    __doc__, runtime=_run, blames="backward", column="eager", explains="missing conjugate", context="complex inputs"
)
