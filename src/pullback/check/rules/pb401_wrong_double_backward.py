"""wrong-double-backward (PB401): second derivatives are silently wrong.

## What it finds
The second derivative of a nonlinear composite of the function, by `autograd.grad` and by `.backward()`, is compared
with finite differences of its first-order gradients. The rule also reports a first-order gradient that changes with
`create_graph=True`. A backward that detaches (`.data`, `no_grad`, NumPy) silently loses its part of the second
derivative. Two causes have rules of their own: PB402 (`once_differentiable`) and PB404 (saved intermediates). If double
backward raises without saying that it is not supported, each input is tried with the others frozen, and then the
backward alone, at a fixed cotangent. The rule also tests at 0, where the second derivative of a branch that is not
taken can make the result NaN: an error for a custom pointwise function, otherwise a warning.

## Why it hurts
Hessians are wrong, and gradient penalties, meta-learning and physics-informed losses train on a number that is not the
derivative.

## Limits
If the backward is not a derivative on purpose, the derivative of the backward itself is tested instead. Inputs for
which the backward returns `None` are held fixed, since they have no first derivative to differentiate.

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

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from pullback.check.derivative.agreement import gradients
from pullback.check.derivative.second_order import SecondOrder, second_order_at_fixed_cotangent, second_order_on
from pullback.check.rules._double_backward import is_once_differentiable, runs_without_grad, silently_wrong
from pullback.check.rules._rule import Rule
from pullback.check.trial import Raised
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    if audit.varied:
        yield from _at_zero(audit)
        return
    second = audit.second
    if second is not None and second.unconverged:
        why = "the second derivative is wrong, and right with ten times the iterations: the forward has not converged"
        hint = "give an example with as many iterations as it needs"
        yield audit.finding("PB401", "warning", "inconclusive", why, case=audit.base, hint=hint)
    if second is not None and second.status == "raised" and not second.is_clear:
        yield from _where_it_does_not_raise(audit, second)
    if second is None or second.status != "wrong":
        return
    if audit.intent is not None and (audit.intent.sign == "cut" or audit.is_native):
        return  # a cut is a constant to every order
    cut = runs_without_grad(audit)
    hidden = second.hidden > 0 and not second.changed and not cut
    others = [("PB402", is_once_differentiable(audit)), ("PB404", hidden)]
    if any(applies and audit.running((rule_id,)) for rule_id, applies in others):
        return
    first = audit.base_result
    is_close = abs(second.got - second.expected) < _CLOSE * abs(second.expected)
    is_approximate = is_close and first is not None and any(c.is_small for c in first.wrong)
    hint = _WITHOUT_GRAD if cut else _AT_ZERO if math.isnan(second.got) else _HINT
    if is_approximate:
        yield silently_wrong(audit, "PB401", second, hint, _APPROXIMATE, severity="warning")
    else:
        yield silently_wrong(audit, "PB401", second, hint)


def _where_it_does_not_raise(audit: Audit, second: SecondOrder) -> Iterator[Finding]:
    """Yield the finding that double backward, which raises in general, is wrong where it does not."""
    positions = audit.base.wrt if len(audit.base.wrt) > 1 else ()
    for position in positions:
        case = replace(audit.base, wrt=(position,))
        try:
            found = second_order_on(audit, case, second.composite)
        except Raised:
            continue
        if found.status == "wrong" and not math.isnan(found.got):
            why = f" (where {audit.base.names[position]} alone requires grad; where all do, an error stops it)"
            yield silently_wrong(audit, "PB401", found, _HINT, why, case)
            return
    fixed = second_order_at_fixed_cotangent(audit)
    if fixed.status == "wrong" and not math.isnan(fixed.got):
        why = "; where the output is used again an error stops it"
        yield silently_wrong(audit, "PB401", fixed, _HINT, why)


def _at_zero(audit: Audit) -> Iterator[Finding]:
    """Yield the finding that only the second derivative is NaN at 0, as an unselected branch makes it."""
    if audit.second is None or audit.second.status != "ok" or not audit.has_time():
        return
    for case in audit.domain.keep(audit.base.map_inputs(torch.zeros_like, "all zeros")):
        try:
            first = gradients(audit.subject, case)
            found = second_order_on(audit, case, audit.second.composite)
        except Raised:
            continue
        finite = all(g is None or bool(g.isfinite().all()) for g in first)
        if finite and found.status == "wrong" and math.isnan(found.got):
            why = f" (with {case.phrase})"
            # A matrix of zeros is a degenerate one: decompositions have no second derivative there to speak of.
            is_elementwise = audit.numbers.sweeper is not None and not audit.is_native
            yield silently_wrong(audit, "PB401", found, _AT_ZERO, why, case, "error" if is_elementwise else "warning")
            return


_HINT = (
    "write the backward in differentiable torch operations on saved inputs and outputs, without detach, no_grad or "
    ".data; or raise an error in double backward"
)
_WITHOUT_GRAD = (
    "the backward runs under `no_grad`, so that nothing of it is differentiated: decorate it with "
    "`once_differentiable` in place of that, and double backward raises"
)
_CLOSE = 0.1
_APPROXIMATE = " (the gradient itself is off by a small part, as that of an approximation)"
_AT_ZERO = (
    "the slope of a square root, a power or a quotient is NaN or infinite at 0, in a branch not taken, too: put "
    "a safe number in before it, `torch.where(small, 1, x)`"
)


RULE = Rule(
    __doc__,
    runtime=_run,
    blames="backward",
    varies=True,
    early=2,
    column="double backward",
    compared=lambda audit: audit.second is not None and audit.second.status == "ok",
    of_weights="always",
    settled_by=("wrong-double-backward", "wrong-vjp"),
    proves=2,
)
