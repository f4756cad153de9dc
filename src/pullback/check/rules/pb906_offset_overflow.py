"""offset-overflow (PB906): a Triton kernel computes offsets in 32 bits that overflow in large tensors.

## What it finds
The function is called with tensors of more than 2³¹ elements, along the first dimension of its largest input. They are
on PyTorch's "meta" device, without memory: the kernels' first program and their last ones run, with offsets as the
device computes them, and all that is looked at is where they access memory. An offset that overflows is negative.

## Why it hurts
Offsets of 32 bits are enough for every test and for most models, until a batch of long sequences over a large
vocabulary has 2³¹ elements. The kernel then reads and writes memory that is not its own, and seldom crashes.

## Limits
A warning: many functions never see tensors of this size. One dimension is enlarged. Numbers that host code reads from
tensors (`.item()`) are 1, and what kernels load is 0: offsets that are computed from loaded indices do not overflow.
The rule needs Triton, and a machine without a GPU.

## Bad
```python
import triton
import triton.language as tl

@triton.jit
def scale_kernel(x, y, factor, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    a = tl.load(x + row * n + i, mask=i < n, other=0.0)
    tl.store(y + row * n + i, a * factor, mask=i < n)

def scaled(x, factor):
    x = x.contiguous()
    y = torch.empty_like(x)
    n = x.shape[-1]
    scale_kernel[(x.numel() // n,)](x, y, factor, n, BLOCK=triton.next_power_of_2(n))
    return y

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return scaled(x, factor)

    @staticmethod
    def backward(ctx, g):
        return scaled(g, ctx.factor), None
```

## Good
```python
import triton
import triton.language as tl

@triton.jit
def scale_kernel(x, y, factor, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    a = tl.load(x + row * n + i, mask=i < n, other=0.0)
    tl.store(y + row * n + i, a * factor, mask=i < n)

def scaled(x, factor):
    x = x.contiguous()
    y = torch.empty_like(x)
    n = x.shape[-1]
    scale_kernel[(x.numel() // n,)](x, y, factor, n, BLOCK=triton.next_power_of_2(n))
    return y

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return scaled(x, factor)

    @staticmethod
    def backward(ctx, g):
        return scaled(g, ctx.factor), None
```
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.check.case import Case, is_differentiable
from pullback.check.find.kernels import recording
from pullback.check.kernel_runs import kernel_runs
from pullback.check.rules._kernels import at_line, shown_line
from pullback.check.rules._rule import Rule
from pullback.check.trial import Raised, forward, guarded
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit
    from pullback.interpreter import World

_ELEMENTS = 2**31 + 2**27
"""Enough for the last programs of a launch to start beyond 2³¹ elements."""
_NEGATIVE = re.compile(r"(?:first|element) -\d")
"""Matches an access that overflowed. One beyond the end is of sizes, or numbers, that do not fit the enlarged ones."""
_HINT = "compute the offset in 64 bits: tl.program_id(0).to(tl.int64), or give the strides as int64"


def _run(audit: Audit) -> Iterator[Finding]:
    ordinary = {(one.file, one.line) for run in kernel_runs(audit) for one in run.world.irregularities}
    huge = _enlarged(audit.base) if kernel_runs(audit) else None
    world = None if huge is None else _simulated(audit, huge)
    if world is None or huge is None:
        return
    for found in world.irregularities:
        is_overflow = found.kind == "out-of-bounds" and _NEGATIVE.search(found.what)
        if not is_overflow or (found.file, found.line) in ordinary:
            continue
        shapes = ", ".join(str(tuple(t.shape)) for t in huge.tensors)
        where = f"kernel {found.kernel} ({shown_line(found.file, found.line)}), program {found.program}"
        what = f"{where}: {found.what}, with inputs of shape {shapes}"
        yield at_line(audit, audit.finding("PB906", "warning", "wrong", what, hint=_HINT), found.file, found.line)
        return


def _enlarged(base: Case) -> Case | None:
    """Return the call with more than 2³¹ elements in its largest input, without memory.

    Every tensor whose first dimension has the same size gets the new one: the batch, or the rows.
    """
    largest = max(base.tensors, key=Tensor.numel, default=None)
    if largest is None or largest.dim() < 2 or not largest.numel():
        return None
    rows, each = largest.shape[0], largest.numel() // largest.shape[0]
    count = math.ceil(_ELEMENTS / each)

    def huge(value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        shape = (count, *value.shape[1:]) if value.dim() and value.shape[0] == rows else tuple(value.shape)
        return torch.empty(shape, dtype=value.dtype, device="meta")

    return replace(base, values=tuple(map(huge, base.values)), label="huge", layout_only=False)


def _simulated(audit: Audit, huge: Case) -> World | None:
    """Return the record of forward and backward; `None` if the call cannot be made without values."""
    with recording(simulates=True) as world:
        try:
            run = forward(audit.subject, huge)
        except Raised:
            return world if world.launches else None
        with suppress(Raised), guarded("backward"):
            outputs = [out for out in run.roots if is_differentiable(out)]
            torch.autograd.grad(outputs, run.inputs, [torch.empty_like(out) for out in outputs], allow_unused=True)
    return world


RULE = Rule(__doc__, runtime=_run, shrinks=False)
