"""out-of-bounds (PB901): a Triton kernel reads or writes outside the storage of its tensors.

## What it finds
The kernels of the function are interpreted, and each address is compared with the storage of the tensor that it was
computed from. This is done on the example, on other sizes (one element more and less than a block), with other strides
and with other options.

## Why it hurts
On a GPU such a read returns what another tensor holds, and such a write changes it. Both seem to work until the address
is unmapped: then the process ends with an illegal memory access, often in another kernel.

## Limits
A kernel does not check that its arguments fit each other. So a variant counts only if it keeps the relations of the
example: equal sizes stay equal, a size that is the product of two others stays their product, a multiple of an integer
argument stays a multiple of it, and a size that counts blocks (whose length is an argument) still counts them. If the
example has an integer tensor with a positive element, such as labels or indices, all sizes stay: an out-of-bounds
access at other sizes is then missed. Audit the function again with an example of each size that matters. If the example
itself was guessed and has several arguments, the finding is a warning. An access outside of a view but within its
storage is not detected. The rule runs only where kernels are interpreted: with Triton installed and no accelerator.

## Bad
```python
import triton
import triton.language as tl

@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, 2 * tl.load(x + i), mask=i < n)

def doubled(x):
    x, out = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    double_kernel[(triton.cdiv(x.numel(), 8),)](x, out, x.numel(), BLOCK=8)
    return out

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return doubled(x)

    @staticmethod
    def backward(ctx, g):
        return doubled(g)
```

## Good
```python
import triton
import triton.language as tl

@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)

def doubled(x):
    x, out = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    double_kernel[(triton.cdiv(x.numel(), 8),)](x, out, x.numel(), BLOCK=8)
    return out

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return doubled(x)

    @staticmethod
    def backward(ctx, g):
        return doubled(g)
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

_HINT = "mask lanes, and guard rows, beyond the last element; compute addresses with the strides of the tensor"


def _run(audit: Audit) -> Iterator[Finding]:
    yield from irregularities(audit, "PB901", "out-of-bounds", _HINT)


RULE = Rule(
    __doc__,
    runtime=_run,
    shrinks=False,
    early=1,
    needs_repeatable=False,
    of_weights="alone",
    of_kernels=True,
)
