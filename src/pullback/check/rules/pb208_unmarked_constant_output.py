"""unmarked-constant-output (PB208): an output without a derivative is not marked non-differentiable.

## What it finds
One of several outputs that requires grad although it changes with no input and no gradient depends on its cotangent.
Typically it is a mask, a count or an index in floating point without `ctx.mark_non_differentiable`.

## Why it hurts
A loss of this output gets a gradient of zeros and no error. Everything computed from it is recorded and kept for a
backward that contributes nothing.

## Limits
Outputs of integer or bool dtype need no mark, since PyTorch never treats them as differentiable. A function with one
output that is flat everywhere, like `sign`, is not reported, as PyTorch's own functions are like that. The rule runs on
the example alone.

## Bad
```python
class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        mask = (x > 0).to(x.dtype)
        ctx.save_for_backward(mask)
        return x * mask, mask

    @staticmethod
    def backward(ctx, g, _):
        (mask,) = ctx.saved_tensors
        return g * mask
```

## Good
```python
class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        mask = (x > 0).to(x.dtype)
        ctx.mark_non_differentiable(mask)
        ctx.save_for_backward(mask)
        return x * mask, mask

    @staticmethod
    def backward(ctx, g, _):
        (mask,) = ctx.saved_tensors
        return g * mask
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.derivative.diagnosis import ignored_cotangents
from pullback.check.derivative.first_order import moves_output
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    result = audit.base_result
    if result is None or result.error:
        return
    ignored = ignored_cotangents(audit, result)
    if len(ignored) == len(result.run.differentiable):
        return  # nothing depends on any cotangent: not a matter of this output
    for output in ignored:
        input_indices = range(len(audit.names))
        if any(
            moves_output(audit.subject, result, input_index, output, audit.generator) for input_index in input_indices
        ):
            continue  # PB111's subject
        position = result.run.differentiable[output]
        yield audit.finding(
            "PB208",
            "warning",
            "wrong",
            f"output {position} does not depend on any input and is not marked as non-differentiable",
            case=audit.base,
            tail=[
                audit.outs,
                f"print('requires grad:', outs[{output}].requires_grad)",
                f"print('gradients:', torch.autograd.grad(outs[{output}].sum(), inputs, allow_unused=True))",
            ],
            hint="call ctx.mark_non_differentiable on it",
        )


RULE = Rule(__doc__, runtime=_run, blames="forward", kinds=("function",), needs_cpu=True)
