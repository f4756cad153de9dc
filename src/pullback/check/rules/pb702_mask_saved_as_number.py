"""mask-saved-as-number (PB702): a mask is saved in a dtype of several bytes.

## What it finds
Floating-point tensors kept between forward and backward, other than inputs and outputs, that hold both 0 and 1 and
nothing else, on the example and on four times its values in reverse order.

## Why it hurts
A mask takes one byte per element as bool, and four in float32, until the backward has run. For dropout and ReLU that is
as much as the activation itself.

## Limits
The finding is advice: the tensor may hold other values on other inputs. Integer tensors are not reported, since they
may be indices. `torch.where` and products accept a bool mask directly.

## Bad
```python
class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        mask = (x > 0).to(x.dtype)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask
```

## Good
```python
class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        mask = x > 0
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from pullback.check.derivative.recorder import describe, is_plain, size, trace
from pullback.check.rules._residuals import bytes_kept
from pullback.check.rules._rule import Rule
from pullback.dtypes import has_reals
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    found = audit.trace
    if found is None or not any(map(_is_mask, found.computed)):
        return
    other = trace(audit.subject, audit.base.map_inputs(lambda t: 4 * t.flatten().flip(0).reshape(t.shape), "other"))
    if other is None or len(other.computed) != len(found.computed):
        return
    for mask, other_mask in zip(found.computed, other.computed, strict=True):
        if _is_mask(mask) and _is_mask(other_mask):
            yield audit.finding(
                "PB702",
                "warning",
                "wrong",
                f"kept for the backward: {describe(mask)}, of 0 and 1 only; as bool it takes {mask.numel()} bytes",
                case=audit.base,
                evidence=bytes_kept(size(mask), mask.numel()),
                hint="save the comparison itself, a bool tensor",
            )


def _is_mask(t: Tensor) -> bool:
    return has_reals(t) and not t.is_complex() and is_plain(t) and bool(((t == 0) | (t == 1)).all())


RULE = Rule(__doc__, runtime=_run, kinds=("function",), shrinks=False, needs_cpu=True)
