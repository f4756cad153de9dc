"""wrong-double-backward (PB401): second derivatives are silently wrong.

## What it finds
The second derivative of a non-linear composite of the function, by `autograd.grad` and by `.backward()`,
against finite differences of its first-order gradients; and a first-order gradient that changes when
`create_graph=True`. A backward that detaches (`.data`, `no_grad`, NumPy) loses its part without an error. Two
causes have rules of their own: PB402 (`once_differentiable`) and PB404 (saved intermediates).

## Why it hurts
Hessians, gradient penalties, meta-learning and physics-informed losses train on a number that is not the
derivative.

## Limits
For a backward that is no derivative on purpose, the derivative of the backward itself is tested instead. Inputs that
the backward gives no gradient (`None`) are held: of them there is no first derivative to differentiate.

## Bad
```python
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x.detach() ** 2
```

## Good
```python
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x**2
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.rules._rule import rule
from pullback.check.rules._second import is_once_differentiable, runs_without_grad, silently_wrong
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.state import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    second = audit.second
    if second is not None and second.unconverged:
        why = "the second derivative is wrong, and right with ten times the iterations: the forward has not converged"
        hint = "give an example with as many iterations as it needs"
        yield audit.finding("PB401", "warning", "inconclusive", why, case=audit.base, hint=hint)
    if second is None or second.status != "wrong":
        return
    cut = runs_without_grad(audit)
    hidden = second.hidden > 0 and not second.changed and not cut
    others = [("PB402", is_once_differentiable(audit)), ("PB404", hidden)]
    if any(applies and audit.running((rule_id,)) for rule_id, applies in others):
        return
    yield silently_wrong(audit, "PB401", _WITHOUT_GRAD if cut else _HINT)


_HINT = (
    "write the backward in differentiable torch operations on saved inputs and outputs, without detach, no_grad or "
    ".data; or raise an error in double backward"
)
_WITHOUT_GRAD = (
    "the backward runs under `no_grad`, so that nothing of it is differentiated: decorate it with "
    "`once_differentiable` in place of that, and double backward raises"
)


RULE = rule(__doc__, runtime=_run, blames="backward")
