"""undefined-lanes (PB904): the result of a Triton kernel depends on lanes that were masked off without a value.

## What it finds
`tl.load` with a mask but without `other` leaves the lanes that are masked off undefined. The kernels of the function
are interpreted twice, with 0 and with 1000 in these lanes. An output or a gradient that differs depends on them. The
same holds for block pointers without `padding_option`, beyond their bounds: there it is a warning.

## Why it hurts
The lanes often hold zeros, so that a sum over the block is right in a test. With another version of the compiler, or
another block size, they hold something else.

## Limits
A dependence that neither 0 nor 1000 reveals is missed. Calls with an out-of-bounds access are left to PB901.
The rule runs only where kernels are interpreted: with Triton installed and no accelerator.

## Bad
```python
import triton
import triton.language as tl

@triton.jit
def energy_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n)
    tl.atomic_add(out, tl.sum(a * a, 0))

class Energy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        x, out = x.contiguous(), x.new_zeros(1)
        energy_kernel[(triton.cdiv(x.numel(), 8),)](x, out, x.numel(), BLOCK=8)
        return out

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x
```

## Good
```python
import triton
import triton.language as tl

@triton.jit
def energy_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=0.0)
    tl.atomic_add(out, tl.sum(a * a, 0))

class Energy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        x, out = x.contiguous(), x.new_zeros(1)
        energy_kernel[(triton.cdiv(x.numel(), 8),)](x, out, x.numel(), BLOCK=8)
        return out

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x
```
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pullback.check.kernel_runs import KernelRun, kernel_runs, run_in_world
from pullback.check.rules._kernels import at_line, differing, first_difference, shown_line
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_OTHER = 1e3
_HINT = "give the load an `other`, or a `padding_option`, that is neutral: 0 for a sum, -inf for a maximum"


def _run(audit: Audit) -> Iterator[Finding]:
    kinds = [("undefined", "bare_loads"), ("padding", "unpadded_loads")]
    for run in kernel_runs(audit):
        if any(found.kind == "out-of-bounds" for found in run.world.irregularities):
            continue  # beyond the bounds, too, memory holds what the setting says: that is PB901's
        for setting, loads in kinds:
            if (found := _dependent(audit, run, setting, sorted(getattr(run.world, loads)))) is not None:
                yield found
                return


def _dependent(audit: Audit, run: KernelRun, setting: str, loads: Sequence[tuple[str, int]]) -> Finding | None:
    """Return the finding that the result depends on what some loads leave undefined."""
    audit.events.beat()
    other = run_in_world(audit, run.case, **{setting: _OTHER}) if loads else None
    where = None if other is None else first_difference(run, other)
    if where is None:
        return None
    lines = ", ".join(shown_line(*load) for load in loads)
    missing = "`other`" if setting == "undefined" else "`padding_option`"
    changed = f"with {_OTHER:g} in place of 0"
    what = f"lanes that a load without {missing} leaves undefined ({lines}) reach the result; {changed}"
    finding = differing(audit, "PB904", run, where, (f"{setting}=0.0", f"{setting}={_OTHER}"), what, _HINT)
    if setting == "padding":  # devices give zeros there
        finding = replace(finding, severity="warning")
    return at_line(audit, finding, *loads[0])


RULE = Rule(__doc__, runtime=_run, shrinks=False, early=1, of_weights="alone")
