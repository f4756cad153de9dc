"""narrow-accumulation (PB907): a Triton kernel computes in too few bits and loses digits.

## What it finds
The kernel runs twice, on float32 and on bfloat16 inputs: as written, and with all 16-bit values computed in float32
(and stored in 16 bits). Both runs are compared with one in float64. The rule reports an output or a gradient whose
error is several times that of the second run. An info reports how much atomic additions of float32 make the result
depend on the order of the programs.

## Why it hurts
A sum of a thousand terms in float16 or bfloat16 stops growing when a term is below half a unit in the last place of
the total. Tests allow for it: their tolerances for bfloat16 are 1e-2 and more.

## Limits
A sum is only as long as the example and the other sizes that are tried. TF32 in `tl.dot`, the default on recent GPUs,
is treated as intended; its rounding is never simulated. The rule runs only where kernels are interpreted: with Triton
installed and no accelerator.

## Bad
```python
import triton
import triton.language as tl

@triton.jit
def mean_kernel(x, y, n, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), dtype=tl.float16)
    i = tl.arange(0, BLOCK)
    for start in range(0, n, BLOCK):
        a = tl.load(x + tl.program_id(0) * n + start + i, mask=start + i < n, other=0.0)
        total += a.to(tl.float16)
    tl.store(y + tl.program_id(0), tl.sum(total.to(tl.float32), 0) / n)

class Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        y = x.new_empty(x.shape[0])
        mean_kernel[(x.shape[0],)](x.contiguous(), y, x.shape[1], BLOCK=4)
        return y

    @staticmethod
    def backward(ctx, g):
        return (g / ctx.shape[1])[:, None].expand(ctx.shape)
```

## Good
```python
import triton
import triton.language as tl

@triton.jit
def mean_kernel(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    i = tl.arange(0, BLOCK)
    for start in range(0, n, BLOCK):
        a = tl.load(x + row * n + start + i, mask=start + i < n, other=0.0)
        total += a.to(tl.float32)
    tl.store(y + row, tl.sum(total, 0) / n)

class Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        y = x.new_empty(x.shape[0])
        mean_kernel[(x.shape[0],)](x.contiguous(), y, x.shape[1], BLOCK=4)
        return y

    @staticmethod
    def backward(ctx, g):
        return (g / ctx.shape[1])[:, None].expand(ctx.shape)
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.check.kernel_runs import KernelRun, kernel_runs, run_in_world
from pullback.check.rules._kernels import at_line, in_dtype, shown_line
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit
    from pullback.check.case import Case

_TIMES = 4.0
"""How much larger an error has to be than that of the same kernel in float32."""
_ULPS = 2.0
"""And than so many units in the last place of the largest element."""
_EXACT = "for results that are the same in each run, let each program write a part of its own, and add the parts up"
_HINT = "accumulate in float32: tl.zeros(..., dtype=tl.float32), and convert when the result is stored"


def _run(audit: Audit) -> Iterator[Finding]:
    runs = kernel_runs(audit)
    if not runs:
        return
    case = max((run.case for run in runs), key=lambda case: sum(t.numel() for t in case.tensors))
    for dtype in (torch.float32, torch.bfloat16):
        audit.events.beat()
        narrow = in_dtype(case, dtype)
        settings = {"lifts": False, "rounds_tf32": False}
        as_written, wide = (run_in_world(audit, narrow, is_wide=is_wide, **settings) for is_wide in (False, True))
        exact = run_in_world(audit, in_dtype(narrow, torch.float64))
        if as_written is None or wide is None or exact is None:
            continue
        for index, rounded, better, right in _together(as_written, wide, exact):
            if (found := _lost(audit, case, exact.name_of(index), dtype, rounded, better, right)) is not None:
                yield found
                return
    yield from _of_order(audit, in_dtype(case, torch.float32))


def _of_order(audit: Audit, case: Case) -> Iterator[Finding]:
    """Yield an info if results of float32 depend on which program comes first."""
    one, other = (run_in_world(audit, case, lifts=False, reverses=first) for first in (False, True))
    if one is None or other is None or not one.world.atomics:
        return
    epsilon = torch.finfo(torch.float32).eps
    for index, there, here, _ in _together(one, other, one):
        unit = float(there.abs().max()) * epsilon
        if there.shape == here.shape and unit and (change := float((there - here).abs().max()) / unit) > 0:
            lines = sorted(one.world.atomics)
            shown = ", ".join(shown_line(*line) for line in lines)
            differs = f"differs by {change:.2g} ulp of its largest element with the order of atomics"
            message = f"{one.name_of(index)} of float32 inputs {differs}"
            yield at_line(
                audit, audit.finding("PB907", "info", "unstable", f"{message} ({shown})", hint=_EXACT), *lines[0]
            )
            return


def _together(*runs: KernelRun) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Yield the floating results that all of three runs have, in float64, each with its index."""
    for index, (one, two, three) in enumerate(zip(*(run.results for run in runs), strict=False)):
        if one is not None and two is not None and three is not None and one.is_floating_point() and one.numel():
            yield index, one.double(), two.double(), three.double()


def _lost(
    audit: Audit,
    case: Case,
    name: str,
    dtype: torch.dtype,
    rounded: Tensor,
    better: Tensor,
    right: Tensor,
) -> Finding | None:
    """Return the finding, if an error is far above what the same kernel loses in float32."""
    if not (rounded.shape == better.shape == right.shape) or not bool(right.isfinite().all()):
        return None
    unit = float(right.abs().max()) * torch.finfo(dtype).eps
    error, least = (float((found - right).abs().max()) for found in (rounded, better))
    if not error > _TIMES * least + _ULPS * unit or unit == 0:
        return None
    kind = str(dtype).removeprefix("torch.")
    message = (
        f"{name} of {kind} inputs is off by {error / unit:.3g} ulp of its largest element as the kernel is written, "
        f"and by {least / unit:.3g} if it computes in float32"
    )
    message += f"; with {case.phrase}" if case.is_variant else ""
    return audit.finding("PB907", "warning", "unstable", message, hint=_HINT)


RULE = Rule(__doc__, runtime=_run, shrinks=False)
