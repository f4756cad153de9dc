"""none-for-differentiable-input (PB107): an input that the output depends on gets no gradient.

## What it finds
`None` (or no graph at all) where the numeric derivative is not zero.

## Why it hurts
The parameter never learns, and nothing raises: optimizers skip parameters whose gradient is `None`.

## Limits
The rule runs on the example, and does not see a `None` for an input whose derivative happens to be zero there. It is a
warning if the example was guessed, or if it marks no input by `requires_grad`, so that Pullback chose the inputs, and
another input gets a gradient or this one is called `target`, `labels` or the like. It is `intended` if the structure of
the code shows intent (see PB101), and a warning if only words do.

## Bad
```python
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        (weight,) = ctx.saved_tensors
        return g * weight, None
```

## Good
```python
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g * weight, g * x
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.derivative.agreement import show
from pullback.check.derivative.compare_input import Comparison
from pullback.check.derivative.intent import Intent, severity_of
from pullback.check.rules._reproduction import gradient_and_quotient
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding, Severity

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    result = audit.base_result
    if result is None:
        return
    others = any(g is not None for g in result.gradients)
    for comparison in result.wrong:
        if result.gradients[comparison.input_index] is not None:
            continue
        name = audit.names[comparison.input_index]
        intent = audit.any_intent
        unsure = audit.guessed or (not audit.base.is_asked and (others or _TARGET.fullmatch(name) is not None))
        yield audit.finding(
            "PB107",
            _severity(comparison, intent, unsure),
            "intended" if intent else "wrong",
            f"{name} gets no gradient (None), yet the output depends on it: "
            f"the derivative is {show(comparison.expected)}",
            case=result.case,
            evidence=audit.evidence(result, comparison),
            tail=gradient_and_quotient(audit, result, comparison),
            hint=f"return the gradient of {name}; where None is intended, {_DETACH if audit.base.is_asked else _MARK}",
        )


_TARGET = re.compile(r"(\w+_)?(labels?|targets?|tgt|y_true|mask)", re.IGNORECASE)
"""Names of what a loss compares with, which it takes for a constant."""
_DETACH = "detach it before the call"
_MARK = "give the example with requires_grad_() on the inputs that are differentiated"


def _severity(comparison: Comparison, intent: Intent | None, unsure: bool) -> Severity:
    """Return how bad it is: that the forward is a staircase in one input makes no other input a constant."""
    if intent is None:
        return "warning" if unsure else "error"
    return "warning" if intent.sign == "flat" and not comparison.flat else severity_of(intent)


RULE = Rule(__doc__, runtime=_run, blames="backward", column="eager", explains="no gradient")
