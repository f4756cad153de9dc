"""data-race (PB902): programs of a Triton kernel overwrite each other's results.

## What it finds
The kernels of the function are interpreted, and the programs that read and write each element are recorded. It is a
race if two programs, or two lanes of one, store different values to one element, or if one program changes an element
that another loads, without an atomic. Kernels with atomic operations are run once more, the last program first: a
result that differs by more than rounding depends on the order as well.

## Why it hurts
Programs run in any order and at once. The result depends on their timing: it is right in a test with one block, and
wrong and non-deterministic at real sizes.

## Limits
Programs that store equal values in one element are not reported. A kernel that waits for a lock is not checked for
reads and writes in between. Launches are assumed to run in order, on one stream. The rule runs only where kernels are
interpreted: with Triton installed and no accelerator.

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

from pullback.check.kernel_runs import kernel_runs, run_in_world
from pullback.check.rules._kernels import at_line, differing, first_difference, irregularities, shown_line
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_HINT = (
    "use an atomic operation, or give each program an element of its own and add these up afterwards; if the strides "
    "of an input are at fault, call .contiguous() on it"
)


_ORDER_HINT = (
    "let no program's result depend on which came first: sums of atomic additions may, by rounding, and no more"
)


def _run(audit: Audit) -> Iterator[Finding]:
    found = list(irregularities(audit, "PB902", "data-race", _HINT))
    yield from found or (_of_order(audit) if audit.run_difference is None else ())


def _of_order(audit: Audit) -> Iterator[Finding]:
    """Yield the finding that the result depends on the order of the programs."""
    for run in kernel_runs(audit):
        if not run.world.atomics or not audit.has_time():
            continue
        audit.events.beat()
        other = run_in_world(audit, run.case, reverses=True)
        where = None if other is None else first_difference(run, other)
        if where is not None:
            lines = sorted(run.world.atomics)
            shown = ", ".join(shown_line(*line) for line in lines)
            what = f"the result of atomic operations ({shown}) is another if the last program runs first"
            finding = differing(audit, "PB902", run, where, ("", "reverses=True"), what, _ORDER_HINT)
            yield at_line(audit, finding, *lines[0])
            return


RULE = Rule(
    __doc__,
    runtime=_run,
    shrinks=False,
    early=1,
    needs_repeatable=False,
    of_weights="alone",
    of_kernels=True,
)
