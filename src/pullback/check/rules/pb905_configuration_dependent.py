"""configuration-dependent (PB905): the result of a Triton kernel depends on its autotuner's choice, or on the device.

## What it finds
The kernels of the function are interpreted with the first, the last and the middle configuration of their autotuners.
On its first call an autotuner benchmarks the kernel on the arguments themselves, so one run repeats its launches.
Host code may also choose grids and blocks from the device, so devices with more SMs and less shared memory are
simulated. Outputs and gradients that differ by more than rounding are an error.

## Why it hurts
The autotuner picks the configuration that ran fastest. Another GPU, or a busy one, picks another, and there the result
is wrong. A kernel that adds to memory adds again in each run of the benchmark, so the first call is wrong.

## Limits
At most three configurations are tried, all autotuners at the same position of their lists, on the example and on the
first variants of it. If a configuration has larger blocks than the first one, sizes divisible by 16, but not by the
larger block, are tried, too. Code that caches device properties, other than by `functools.cache`, always sees the first
device. On a GPU the compiled kernels are compared, and no other devices are simulated. The rule needs Triton.

## Bad
```python
import triton
import triton.language as tl

@triton.autotune([triton.Config({"BLOCK": 4}), triton.Config({"BLOCK": 8})], key=["n"])
@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, 2 * tl.load(x + i, mask=i < n, other=0.0), mask=i < n)

def doubled(x):
    x = x.contiguous()
    out = torch.zeros_like(x)
    double_kernel[(triton.cdiv(x.numel(), 8),)](x, out, x.numel())
    return out

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return doubled(x)

    @staticmethod
    def backward(ctx, g):
        return doubled(g)

def inputs():
    return (torch.randn(13, dtype=torch.float64),)
```

## Good
```python
import triton
import triton.language as tl

@triton.autotune([triton.Config({"BLOCK": 4}), triton.Config({"BLOCK": 8})], key=["n"])
@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, 2 * tl.load(x + i, mask=i < n, other=0.0), mask=i < n)

def doubled(x):
    x = x.contiguous()
    out = torch.zeros_like(x)
    double_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return out

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return doubled(x)

    @staticmethod
    def backward(ctx, g):
        return doubled(g)

def inputs():
    return (torch.randn(13, dtype=torch.float64),)
```
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import torch

from pullback.check.cases import sizes
from pullback.check.derivative.agreement import TensorDifference
from pullback.check.kernel_runs import KernelRun, compiled_cases, kernel_runs, run_in_world
from pullback.check.rules._kernels import differing, first_difference
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_MOST = 4
"""Number of calls that are compared, and at most as many again that use larger blocks."""
_DEVICES: list[tuple[str, dict[str, Any], str]] = [
    (
        "processors=7, shared_memory=92160",
        {"processors": 7, "shared_memory": 92160},
        "on a device with 7 processors and 90 KiB of shared memory is not that on one with 2 and 227",
    ),
    ("processors=132", {"processors": 132}, "on a device with 132 processors is not that on one with 2"),
]
_HINT = (
    "derive grid, buffers and masks from the configuration and the device: grid=lambda meta: (cdiv(n, meta['BLOCK']),)"
)

_TUNED = "the result when the autotuner benchmarks the kernel first is not that of a later call"
_TUNING_HINT = (
    "name what the kernel adds to in reset_to_zero= of triton.autotune, and what it changes in place in restore_value="
)


def _run(audit: Audit) -> Iterator[Finding]:
    is_compiled = audit.subject.device is not None
    runs = _compiled_runs(audit) if is_compiled else _compared(kernel_runs(audit))
    for run in runs:
        count = run.world.configurations
        others = [
            (f"config={n}", {"config": n}, f"with configuration {n + 1} of {count} is not that with the first")
            for n in sorted({count - 1, count // 2} - {0}, reverse=True)
        ]
        for source, settings, what in others + _DEVICES * (not is_compiled):
            audit.events.beat()
            other = run_in_world(audit, run.case, **settings)
            if other is None:
                continue
            pairs = chain([(run, other)], () if is_compiled else _with_even_sizes(audit, run, other, settings))
            for first, second in pairs:
                where = first_difference(first, second, _rounding(run) if is_compiled else None)
                if where is not None:
                    yield differing(audit, "PB905", first, where, ("", source), f"the result {what}", _HINT)
                    return
        if count > 1 and not is_compiled and (where := _tuning_changes(audit, run)) is not None:
            yield differing(audit, "PB905", run, where, ("", "tunes=True"), _TUNED, _TUNING_HINT)
            return


def _tuning_changes(audit: Audit, run: KernelRun) -> TensorDifference | None:
    """Return where results differ if autotuners first benchmark their kernels; `None` if later calls differ, too."""
    audit.events.beat()
    tuned = run_in_world(audit, run.case, tunes=True)
    where = None if tuned is None else first_difference(run, tuned)
    if where is None:
        return None
    again = run_in_world(audit, run.case)
    return where if again is not None and first_difference(run, again) is None else None


def _with_even_sizes(
    audit: Audit, run: KernelRun, other: KernelRun, settings: dict[str, Any]
) -> Iterator[tuple[KernelRun, KernelRun]]:
    """Yield the example under both settings with sizes that 16 divides and the larger blocks of the second do not."""
    if run.case is not audit.base or max(other.world.blocks, default=0) <= max(run.world.blocks, default=0):
        return
    for case in sizes.even(run.case, other.world.blocks):
        if audit.has_time() and sizes.keeps_sizes(audit.base, case) and not audit.leaves_out(case):
            audit.events.beat()
            first, second = run_in_world(audit, case), run_in_world(audit, case, **settings)
            if first is not None and second is not None:
                yield first, second


def _compiled_runs(audit: Audit) -> Iterator[KernelRun]:
    """Yield runs on a GPU of kernels whose autotuners have several configurations."""
    for case in islice(compiled_cases(audit), _MOST):
        run = run_in_world(audit, case)
        if run is not None and run.world.configurations > 1:
            yield run


def _rounding(run: KernelRun) -> float:
    """Return the relative difference up to which two orders of a sum may differ on a GPU."""
    floats = [t.dtype for t in run.case.tensors if t.dtype.is_floating_point]
    return float(max((torch.finfo(dtype).eps for dtype in floats), default=0.0) ** 0.5)


def _compared(runs: Sequence[KernelRun]) -> Iterator[KernelRun]:
    """Yield the first runs, and those whose largest block is larger: on a smaller device it may be cut in two."""
    yield from runs[:_MOST]
    largest = max((max(run.world.blocks, default=0) for run in runs[:_MOST]), default=0)
    more = 0
    for run in runs[_MOST:]:
        if more < _MOST and max(run.world.blocks, default=0) > largest:
            largest, more = max(run.world.blocks), more + 1
            yield run


RULE = Rule(__doc__, runtime=_run, shrinks=False, early=1, of_weights="alone")
