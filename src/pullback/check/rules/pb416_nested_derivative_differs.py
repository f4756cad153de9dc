"""nested-derivative-differs (PB416): a nesting of forward and reverse mode gives another derivative than it should.

## What it finds
Second derivatives along random directions, by every nesting of forward and reverse mode: in `torch.func`, also for
batches of directions, as `hessian` takes them, in `torch.autograd` with dual numbers, and with `--deep` by `linearize`.
Third derivatives in `torch.func`, and by reverse mode alone in `torch.autograd`. Two nestings of the same derivative
must agree to rounding. Where they do not, the numeric derivative of the nesting one order below tells which are right.
The example is tried, and the same with exact zeros, ties, equal and constant rows, and multiples of the identity.

- An error: a nesting of a `torch.autograd.Function` is silently wrong.
- A warning: that of a callable is, since [rules of PyTorch](../pytorch.md) may be at fault; or all that are wrong are
  NaN at the second order.
- Nothing: a nesting raises. PB405, PB407 and PB403 tell of what is refused.

## Why it hurts
`torch.func.hessian` is forward over reverse, `jacfwd(jacfwd(f))` forward over forward, a gradient penalty reverse over
reverse. Each runs other rules: the backward, its backward, the `jvp`, the derivative of the `jvp`. One may be right and
the next one wrong.

## Limits
Zeros and ties are tried for 5 % of the budget. Nothing is tried if the gradient or the double backward is wrong, or
not meant to be a derivative: PB101 and PB401 tell that. Two levels of forward mode through a
`jvp` are for PB417.

## Bad
```python
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return Slope.apply(x) * g


class Slope(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return 3 * x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0].detach().clone())

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 6 * x * g


example = Cube
```

## Good
```python
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g
```
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.rules._nesting import at_fault, differing_nestings, measured
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding, Severity

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    for found in measured(audit):
        wrong = at_fault(audit, found.nested)
        is_silent = any(math.isfinite(found.nested.values[n]) for n in wrong)
        if not wrong or not (is_silent or found.order == _SECOND):
            continue
        is_error = audit.subject.kind == "function" and is_silent
        severity: Severity = "error" if is_error else "warning"
        whose = _OF_PYTORCH if audit.is_native else "" if is_error else _OF_EITHER
        hint = _NESTABLE if audit.is_native else _HINT
        yield differing_nestings(audit, "PB416", found, wrong, severity, hint, whose)
        return


_SECOND = 2
"""The order of which NaN is told: it shows where it is used, and few use the third order at such points."""
_OF_PYTORCH = ": PyTorch's own fault, since no custom function runs"
_OF_EITHER = ": the fault of a custom function that runs in it, or of PyTorch's own rules"
_HINT = (
    "write each rule in differentiable operations on saved inputs and outputs, without detach, no_grad or .data, the "
    "rules of Functions that it calls, too"
)
_NESTABLE = "pullback.nestable computes by formulas the operators that PyTorch is known to differentiate wrongly"

RULE = Rule(
    __doc__, runtime=_run, shrinks=False, late=True, column="double backward", transforms=True, context="nested modes"
)
