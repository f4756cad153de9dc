"""unrequested-gradient (PB704): the backward computes a gradient that nobody asked for.

## What it finds
Each input is frozen in turn. If the backward still returns a gradient for it, and some of its operations serve
nothing else, they are counted: the ATen operations that a frozen input's gradient depends on and no other gradient
does.

## Why it hurts
Freezing layers, training adapters, or an input that is data: the engine throws the gradient away after it was paid
for. Of a linear layer that is half of the backward.

## Limits
Advice: a warning where a matrix product or a convolution is wasted, an info otherwise. To return a cotangent as it
is, or a view of it, costs nothing and is not meant. One operation that computes several gradients at once is not
taken apart.

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
from typing import TYPE_CHECKING

from torch import Tensor

from pullback.check.cost.trace import Step, Trace, describe, trace
from pullback.check.derivative.agreement import plural
from pullback.check.rules._rule import rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.state import Audit

_MOST_INPUTS = 6
_PRODUCT = re.compile(r"aten\.(mm|bmm|mv|dot|addmm|addbmm|baddbmm|addmv|vdot|.*convolution.*|.*attention.*)")


def _run(audit: Audit) -> Iterator[Finding]:
    count = len(audit.names)
    if audit.trace is None or count < 2:
        return
    for frozen in range(min(count, _MOST_INPUTS)):
        mask = [order != frozen for order in range(count)]
        found = trace(audit.subject, audit.base, mask)
        position = audit.base.top_level(len(audit.base.arguments()[0])).index(audit.base.wrt[frozen])
        returned = None if found is None or position >= len(found.call.returned) else found.call.returned[position]
        if found is None or not isinstance(returned, Tensor) or found.call.needs[position]:
            continue
        wasted = _wasted(found, returned)
        if wasted:
            yield _finding(audit, audit.names[frozen], mask, found, returned, wasted)


def _wasted(found: Trace, returned: Tensor) -> list[Step]:
    """Return the steps that only the unwanted gradient depends on."""
    given = zip(found.call.returned, found.call.needs, strict=False)
    wanted = found.serving([t for t, needed in given if needed and isinstance(t, Tensor)])
    return [step for step in found.serving([returned]) - wanted if not step.is_view]


def _finding(audit: Audit, name: str, mask: list[bool], found: Trace, returned: Tensor, wasted: list[Step]) -> Finding:
    products = sum(bool(_PRODUCT.match(step.name)) for step in wasted)
    of_all = sum(not step.is_view for step in found.steps)
    among = f", {plural(products, 'product')} among them," if products else ""
    return audit.finding(
        "PB704",
        "warning" if products else "info",
        "wrong",
        f"with {name} frozen, the backward still computes its gradient ({describe(returned)}): "
        f"{len(wasted)} of its {plural(of_all, 'operation')}{among} serve nothing else",
        case=audit.base,
        mask=mask,
        hint="compute it only `if ctx.needs_input_grad[k]`, and return None otherwise",
    )


RULE = rule(__doc__, runtime=_run, kinds=("function",), shrinks=False)
