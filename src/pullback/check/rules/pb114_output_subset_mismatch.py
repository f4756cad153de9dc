"""output-subset-mismatch (PB114): an unused output changes the gradient compared with a zero cotangent for it.

## What it finds
The gradient with only output k in the loss is compared with the gradient when the other outputs are in the loss with
zero cotangents. The sum of these gradients over k is compared with the gradient of all outputs together.

## Why it hurts
A loss on one head of a model trains differently from the same loss with a zero-weighted second head.

## Limits
The rule runs on the example alone. A backward that raises when an output is unused is PB112.

## Bad
```python
class SumAndProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return x + y, x * y

    @staticmethod
    def backward(ctx, g_sum, g_product):
        x, y = ctx.saved_tensors
        if g_product is None or g_sum is None:
            return None, None
        return g_sum + y * g_product, g_sum + x * g_product
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

import torch

from pullback.check.derivative.agreement import difference, gradients
from pullback.check.rules._rule import Rule
from pullback.check.trial import Raised, standard_cotangents
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    outputs = len(audit.base_run.roots)
    if outputs < 2 or not audit.backward_works:
        return
    cotangents = standard_cotangents(audit.base_run.roots)
    for used in range(outputs):
        audit.events.beat()
        alone = [g if k == used else None for k, g in enumerate(cotangents)]
        with_zeros = [g if k == used else torch.zeros_like(g) for k, g in enumerate(cotangents)]
        try:
            got = gradients(audit.subject, audit.base, alone)
            expected = gradients(audit.subject, audit.base, with_zeros)
        except Raised:
            return  # PB112's subject
        where = difference(expected, got)
        if where is None:
            continue
        yield audit.finding(
            "PB114",
            "error",
            "wrong",
            f"with only output {audit.base_run.differentiable[used]} used, the gradient of "
            f"{audit.names[where.tensor_index]} is not that of zero cotangents for the others: {where}",
            case=audit.base,
            tail=[
                audit.outs,
                f"print(torch.autograd.grad(outs[{used}].sum(), inputs, retain_graph=True, allow_unused=True))",
                f"g = [torch.ones_like(o) if k == {used} else torch.zeros_like(o) for k, o in enumerate(outs)]",
                "print(torch.autograd.grad(outs, inputs, g, allow_unused=True))",
            ],
            hint="an unused output's cotangent is zero: skip its term, not the whole gradient",
        )
        return


RULE = Rule(__doc__, runtime=_run, of_optional=True, blames="backward", column="eager")
