"""unrequested-gradient (PB704): the backward computes a gradient that is not needed.

## What it finds
Each input is frozen in turn. If the backward still returns a gradient for it, the rule counts the ATen operations that
only this gradient depends on.

## Why it hurts
With frozen layers, adapters, or an input that is data, the engine discards the gradient after it was computed. In a
linear layer that is half of the backward.

## Limits
It is an info, reported from one matrix product or convolution, or from three in ten operations, since most backwards do
some unneeded work. Returning a cotangent unchanged, or a view of it, costs nothing and is not counted. An operation
that computes several gradients at once is not split. All operations count the same, whatever their cost.

## Bad
```python
class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.mT, x.mT @ g

def inputs():
    return torch.rand(3, 4, requires_grad=True), torch.rand(4, 2, requires_grad=True)
```

## Good
```python
class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gx = g @ w.mT if ctx.needs_input_grad[0] else None
        gw = x.mT @ g if ctx.needs_input_grad[1] else None
        return gx, gw

def inputs():
    return torch.rand(3, 4, requires_grad=True), torch.rand(4, 2, requires_grad=True)
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from pullback.check.derivative.recorder import BackwardOp, Trace, describe, trace
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding
from pullback.report.text import count

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_MOST_INPUTS = 6
_MUCH = 0.3
"""Least share of the operations that is reported, if none of them is a product."""
_PRODUCT = re.compile(r"aten\.(mm|bmm|mv|dot|addmm|addbmm|baddbmm|addmv|vdot|.*convolution.*|.*attention.*)")


def _run(audit: Audit) -> Iterator[Finding]:
    wastes = list(_wastes(audit))
    if not wastes:
        return
    first = wastes[0]
    yield audit.finding(
        "PB704",
        "info",
        "wrong",
        f"the backward computes gradients that are not needed: {'; '.join(map(str, wastes))}",
        case=audit.base,
        mask=[name != first.name for name in audit.names],
        hint="compute each only `if ctx.needs_input_grad[k]`, and return None otherwise",
    )


@dataclass(frozen=True, slots=True)
class _Waste:
    """Cost of the gradient of one frozen input: operations that serve it alone, and their total number."""

    name: str
    gradient: Tensor
    operations: int
    products: int
    of: int

    def __str__(self) -> str:
        among = f", {count(self.products, 'product')} among them," if self.products else ""
        serve = "serves" if self.operations == 1 else "serve"
        return (
            f"with {self.name} frozen, {self.operations} of {count(self.of, 'operation')}{among} {serve} its gradient "
            f"alone ({describe(self.gradient)})"
        )


def _wastes(audit: Audit) -> Iterator[_Waste]:
    """Freeze each input, one at a time, and yield the wasted operations if there are many."""
    inputs = len(audit.names)
    if audit.trace is None or inputs < 2:
        return
    positions = audit.base.top_level(len(audit.base.arguments()[0]))
    for frozen in range(min(inputs, _MOST_INPUTS)):
        found = trace(audit.subject, audit.base, [input_index != frozen for input_index in range(inputs)])
        position = positions.index(audit.base.wrt[frozen])
        if found is None or position >= len(found.call.returned) or found.call.needs[position]:
            continue
        returned = found.call.returned[position]
        if isinstance(returned, Tensor):
            wasted = _alone(found, returned)
            products = sum(bool(_PRODUCT.match(step.name)) for step in wasted)
            of = sum(not step.is_view for step in found.steps)
            if products or len(wasted) > _MUCH * of:
                yield _Waste(audit.names[frozen], returned, len(wasted), products, of)


def _alone(found: Trace, returned: Tensor) -> list[BackwardOp]:
    """Return the steps that only the unwanted gradient depends on."""
    given = zip(found.call.returned, found.call.needs, strict=False)
    wanted = found.serving([t for t, needed in given if needed and isinstance(t, Tensor)])
    return [step for step in found.serving([returned]) - wanted if not step.is_view]


RULE = Rule(__doc__, runtime=_run, blames="backward", kinds=("function",), shrinks=False, needs_cpu=True)
