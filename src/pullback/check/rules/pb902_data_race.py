"""data-race (PB902): programs of a Triton kernel overwrite each other's results.

## What it finds
The kernels of the function are interpreted, and the programs that read and write each element are recorded. It is a
race if two programs, or two lanes of one, store different values in one element, or if one changes what another has
read or reads what another has stored, without an atomic operation.

## Why it hurts
Programs run in any order and at once. The result depends on their timing: it is right in a test with one block, and
wrong, and other each time, on a real size.

## Limits
Programs that store equal values in one element are not reported. A kernel that waits for a lock is not checked for
reads and writes in between. Races between two launches cannot occur. The rule needs Triton, and a machine without a
GPU.

## Bad
```python
import triton
import triton.language as tl

@triton.jit
def product_kernel(x, g, total, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=0.0) * tl.load(g + i, mask=i < n, other=0.0)
    tl.store(total, tl.load(total) + tl.sum(a, 0))

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x.contiguous(), w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gw = torch.zeros_like(w)
        product_kernel[(triton.cdiv(x.numel(), 4),)](x, g.contiguous(), gw, x.numel(), BLOCK=4)
        return g * w, gw

def inputs():
    return torch.randn(10, dtype=torch.float64), torch.randn(1, dtype=torch.float64)
```

## Good
```python
import triton
import triton.language as tl

@triton.jit
def product_kernel(x, g, total, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=0.0) * tl.load(g + i, mask=i < n, other=0.0)
    tl.atomic_add(total, tl.sum(a, 0))

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x.contiguous(), w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gw = torch.zeros_like(w)
        product_kernel[(triton.cdiv(x.numel(), 4),)](x, g.contiguous(), gw, x.numel(), BLOCK=4)
        return g * w, gw

def inputs():
    return torch.randn(10, dtype=torch.float64), torch.randn(1, dtype=torch.float64)
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.rules._kernels import irregularities
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_HINT = "use an atomic operation, or give each program an element of its own and add these up afterwards"


def _run(audit: Audit) -> Iterator[Finding]:
    yield from irregularities(audit, "PB902", "data-race", _HINT)


RULE = Rule(__doc__, runtime=_run, shrinks=False, early=1, needs_repeatable=False, of_weights="alone")
