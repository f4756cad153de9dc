"""offset-overflow (PB906): a Triton kernel computes offsets in 32 bits that overflow in large tensors.

## What it finds
The function is called with tensors of more than 2³¹ elements on PyTorch's meta device, which takes no memory. Its
largest input is enlarged along its first dimension, then along the next dimension of another length. Only the
first program and the last ones run, and only their addresses are checked. An overflow shows as an offset that is
negative in 32 bits but not in 64.

## Why it hurts
Offsets of 32 bits are enough for every test and for most models, until a batch of long sequences over a large
vocabulary has 2³¹ elements. The kernel then reads and writes memory that is not its own, and seldom crashes.

## Limits
The finding is a warning, since many functions never see tensors of this size. One length is enlarged at a time. Numbers
that host code reads from tensors (`.item()`) are 1, and floats that kernels load are 0. An integer that a kernel loads
is the largest that the same line loads on the example, scaled up if it grows with the number of rows: the index of a
row that the function computes does, a label or an index that is given does not. Host code is simulated up to 1000
launches, or 4 seconds: a loop of as many rounds as there are rows ends there. The rule runs only where kernels are
interpreted: with Triton installed and no accelerator.

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

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback.check.case import Case, is_differentiable
from pullback.check.find.kernels import recording
from pullback.check.kernel_runs import KernelRun, kernel_runs, run_in_world
from pullback.check.rules._kernels import at_line, shown_line
from pullback.check.rules._rule import Rule
from pullback.check.trial import Raised, forward, guarded
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit
    from pullback.interpreter import Irregularity, World

_WIDEST, _DEEPEST = 2**31 - 1, 65535
"""Programs along the first axis of a grid, and along the others (CUDA C++ Programming Guide, compute capabilities)."""
_ELEMENTS = 2**31 + 2**27
"""Enough for the last programs of a launch to start beyond 2³¹ elements."""
_HINT = "compute the offset in 64 bits: tl.program_id(0).to(tl.int64), or give the strides as int64"


def _run(audit: Audit) -> Iterator[Finding]:
    if runs := kernel_runs(audit):
        found = (_overflow(audit, runs, rows) for rows in _lengths(audit.base))
        yield from itertools.islice(filter(None, found), 1)


def _overflow(audit: Audit, runs: Sequence[KernelRun], rows: int) -> Finding | None:
    """Return the finding of an offset that overflows if there are many rows in the tensors that have so many."""
    each = max(t.numel() // rows for t in audit.base.tensors if t.dim() and t.shape[0] == rows)
    count = math.ceil(_ELEMENTS / each)
    huge = _with_rows(audit.base, rows, count, is_simulated=True)
    expected = _expected(audit, runs[0], rows, count)
    ordinary = {(one.file, one.line) for run in runs for one in run.world.irregularities}
    negative = _negative(audit, huge, wraps=True, expected=expected)
    if any((one.file, one.line) not in ordinary for one in negative):
        # An offset that is negative in 64 bits, too, is of numbers that do not fit each other.
        ordinary |= {(one.file, one.line) for one in _negative(audit, huge, wraps=False, expected=expected)}
    one = next((one for one in negative if (one.file, one.line) not in ordinary), None)
    if one is None:
        return None
    shapes = ", ".join(str(tuple(t.shape)) for t in huge.tensors)
    where = f"kernel {one.kernel} ({shown_line(one.file, one.line)}), program {one.program}"
    what = f"{where}: with inputs of shape {shapes} an offset overflows 32 bits: {one.what}"
    return at_line(audit, audit.finding("PB906", "warning", "wrong", what, hint=_HINT), one.file, one.line)


def _negative(audit: Audit, huge: Case, **settings: Any) -> list[Irregularity]:
    """Return the accesses before the start of a tensor, in a simulation with some settings.

    One beyond its end is of sizes, or numbers, that do not fit the enlarged ones.
    """
    world = _simulated(audit, huge, **settings)
    found = [] if world is None else world.irregularities
    return [
        one for one in found if one.kind == "out-of-bounds" and (one.element or 0) < 0 and _is_possible(one.program)
    ]


def _is_possible(program: tuple[int, int, int]) -> bool:
    """Whether a GPU takes a grid that has a program: larger ones raise."""
    x, y, z = program
    return x < _WIDEST and max(y, z) < _DEEPEST


def _lengths(base: Case) -> list[int]:
    """Return the length of the first dimension of the largest input, and that of the next that has another, if any.

    The latter is left out if other dimensions have it: they would not follow.
    """
    tensors = sorted((t for t in base.tensors if t.dim() > 1 and t.numel()), key=Tensor.numel, reverse=True)
    inner = {size for t in base.all_tensors.values() for size in t.shape[1:]}
    first, *others = dict.fromkeys(t.shape[0] for t in tensors) or [0]
    return [first, *(n for n in others if n not in inner)][:2] if first else []


def _with_rows(base: Case, rows: int, count: int, is_simulated: bool) -> Case:
    """Return the call with another length of each first dimension of a length.

    In a simulation the tensors take no memory; otherwise rows are repeated.
    """

    def changed(value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        has_rows = value.dim() > 0 and value.shape[0] == rows
        if is_simulated:
            shape = (count if has_rows else n for n in value.shape[:1])
            return torch.empty((*shape, *value.shape[1:]), dtype=value.dtype, device="meta")
        return value.index_select(0, torch.arange(count) % rows) if has_rows else value

    return replace(base, values=tuple(map(changed, base.values)), label="huge", layout_only=False)


def _expected(audit: Audit, run: KernelRun, rows: int, count: int) -> dict[tuple[str, int], int]:
    """Return the largest integer that each line would load beside `count` rows, by extrapolation from twice the rows.

    The index of a row grows with their number; that of an expert or a word does not.
    """
    if not run.world.loaded:
        return {}
    twice = run_in_world(audit, _with_rows(audit.base, rows, 2 * rows, is_simulated=False))
    if twice is None:
        return {}
    more = twice.world.loaded
    return {place: n + max(more.get(place, n) - n, 0) * (count - rows) // rows for place, n in run.world.loaded.items()}


def _simulated(audit: Audit, huge: Case, **settings: Any) -> World | None:
    """Return the record of forward and backward; `None` if the call cannot be made without values."""
    with recording(simulates=True, **settings) as world:
        try:
            run = forward(audit.subject, huge)
        except Raised:
            return world if world.launches else None
        with suppress(Raised), guarded("backward"):
            outputs = [out for out in run.roots if is_differentiable(out)]
            torch.autograd.grad(outputs, run.inputs, [torch.empty_like(out) for out in outputs], allow_unused=True)
    return world


RULE = Rule(__doc__, runtime=_run, shrinks=False)
