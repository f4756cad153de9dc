"""uninitialised-memory (PB903): a Triton kernel reads uninitialised memory.

## What it finds
The kernels of the function are interpreted, and memory from `torch.empty`, `empty_like`, `empty_strided`, `new_empty`
and `new_empty_strided` holds a marked NaN. A kernel that loads it, or adds to it atomically, reads uninitialised
memory.

## Why it hurts
`torch.empty` returns memory that was used before. It often holds zeros in a test, and what another tensor left there in
training.

## Limits
Memory that the function returns without having written it is reported as [a wrong gradient](pb101.md). A value that is
loaded and then not used is reported too. Memory of integers and booleans is not marked. The rule runs
only where kernels are interpreted: with Triton installed and no accelerator.

## Bad
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
        gw = torch.empty_like(w)
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

_HINT = "allocate the buffer with torch.zeros, or write every element before the kernel reads it"


def _run(audit: Audit) -> Iterator[Finding]:
    yield from irregularities(audit, "PB903", "uninitialised-memory", _HINT)


RULE = Rule(
    __doc__,
    runtime=_run,
    shrinks=False,
    early=1,
    needs_repeatable=False,
    of_weights="alone",
    of_kernels=True,
)
