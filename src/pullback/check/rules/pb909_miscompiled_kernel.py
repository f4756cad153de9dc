"""miscompiled-kernel (PB909): a Triton kernel gives a different result compiled than interpreted.

## What it finds
On a machine with a GPU, the function is called there, and once more in a process without a GPU, where its kernels are
interpreted: rounded as on the GPU, and in float64. The example is compared in its own dtype, in float32 and in
bfloat16, and so are its first variants. A result of the GPU whose error is far above that of the interpreted kernel
is an error.

If the gradient is wrong and this rule is silent, suspect the formula. If it reports, run `pullback check --interpret`
first: races, accesses out of bounds and undefined lanes make the runs differ, too. If that finds none, suspect the
compiler or a missing barrier.

## Why it hurts
Statements of a kernel run in order when it is interpreted. Compiled, the threads of a program run side by side, the
compiler reorders and fuses operations, and tensor cores round. A missing barrier, or a bug of the compiler, shows there
alone, and a test on the CPU never sees it.

## Limits
The rule needs a GPU, and a function in a file, which another process can import. A difference below ten times the
rounding error of the kernel, plus the square root of the unit roundoff, is taken for rounding. Functions that draw
random numbers are left out.

## Bad
```python
import triton
import triton.language as tl

@triton.jit
def flip_kernel(x, scratch, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(scratch + i, tl.load(x + i, mask=i < n, other=0.0), mask=i < n)
    tl.store(out + i, tl.load(scratch + n - 1 - i, mask=i < n, other=0.0), mask=i < n)

def flipped(x):
    x = x.contiguous()
    scratch, out = torch.zeros_like(x), torch.empty_like(x)
    flip_kernel[(1,)](x, scratch, out, x.numel(), BLOCK=4096, num_warps=8)
    return out

class Flip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return flipped(x)

    @staticmethod
    def backward(ctx, g):
        return flipped(g)

def inputs():
    return (torch.randn(4000, device="cuda"),)
```

## Good
```python
import triton
import triton.language as tl

@triton.jit
def flip_kernel(x, scratch, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(scratch + i, tl.load(x + i, mask=i < n, other=0.0), mask=i < n)
    tl.debug_barrier()
    tl.store(out + i, tl.load(scratch + n - 1 - i, mask=i < n, other=0.0), mask=i < n)

def flipped(x):
    x = x.contiguous()
    scratch, out = torch.zeros_like(x), torch.empty_like(x)
    flip_kernel[(1,)](x, scratch, out, x.numel(), BLOCK=4096, num_warps=8)
    return out

class Flip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return flipped(x)

    @staticmethod
    def backward(ctx, g):
        return flipped(g)

def inputs():
    return (torch.randn(4000, device="cuda"),)
```
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.check.case import is_differentiable
from pullback.check.cases.repro import bind
from pullback.check.derivative.agreement import subscript
from pullback.check.interpreted_process import Interpreted, NotInterpretedError, interpreted
from pullback.check.kernel_runs import Results, compiled_cases, run_in_world
from pullback.check.rules._kernels import in_dtype
from pullback.check.rules._rule import Rule
from pullback.check.trial import standard_cotangents
from pullback.report.model import Evidence, Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit
    from pullback.check.case import Case

_MOST = 6
"""Number of calls that are compared, each in up to three dtypes."""
_TIMES = 10.0
_HINT = "look for a missing tl.debug_barrier() or atomic; if there is none, report it to Triton with this example"


def _run(audit: Audit) -> Iterator[Finding]:
    runs: list[Results] = []
    for case in islice(compiled_cases(audit), _MOST):
        audit.events.beat()
        found = [run_in_world(audit, each) for each in _in_dtypes(case)]
        runs += [run for run in found if run is not None]
    if not runs or audit.draws:
        return
    try:
        answers = interpreted(audit, [run.case for run in runs])
    except NotInterpretedError as error:
        what = f"not compared with its kernels interpreted: {error}"
        yield audit.finding("PB909", "info", "inconclusive", what)
        return
    for run, answer in zip(runs, answers, strict=False):
        if (finding := _difference(audit, run, answer)) is not None:
            yield finding
            return


def _in_dtypes(case: Case) -> list[Case]:
    """Return a call in its own dtype, and in those that kernels are trained in."""
    dtypes = {t.dtype for t in case.tensors if is_differentiable(t)}
    if any(dtype.is_complex for dtype in dtypes):
        return [case]
    return [case, *(in_dtype(case, d) for d in (torch.float32, torch.bfloat16) if dtypes - {d})]


def _difference(audit: Audit, run: Results, other: Interpreted) -> Finding | None:
    if other.as_written is None or other.lifted is None:
        return None
    for index, (got, written, right) in enumerate(
        zip(run.results, other.as_written.results, other.lifted.results, strict=False)
    ):
        if got is None or written is None or right is None or not got.shape == written.shape == right.shape:
            continue
        if (at := _worst(got, written, right)) is not None:
            return _miscompiled(audit, run, index, at, got, written, other.irregular)
    return None


def _worst(got: Tensor, written: Tensor, right: Tensor) -> tuple[int, ...] | None:
    """Return the place of the largest error; `None` if it is as small as the interpreted kernel's may be."""
    if not (got.numel() and got.is_floating_point()):
        return None
    unit = torch.finfo(got.dtype).eps
    got, written, right = got.double(), written.double(), right.double()
    counts = written.isfinite() & right.isfinite()
    error = torch.where(counts, (got - right).abs().nan_to_num(nan=torch.inf), 0)
    least = float(torch.where(counts, (written - right).abs(), 0).max())
    size = float(torch.where(counts, right.abs(), 0).max())
    if not float(error.max()) > _TIMES * least + unit**0.5 * size:
        return None
    return tuple(map(int, torch.unravel_index(error.argmax(), error.shape)))


def _miscompiled(
    audit: Audit, run: Results, index: int, at: tuple[int, ...], got: Tensor, written: Tensor, irregular: str
) -> Finding:
    found, right = float(got[at]), float(written[at])
    kind = next(str(t.dtype).removeprefix("torch.") for t in run.case.tensors if is_differentiable(t))
    where = f"{run.name_of(index)} of {kind} inputs at {list(at)}" if at else f"{run.name_of(index)} of {kind} inputs"
    message = f"{where} is {found:.6g} from the compiled kernels, and {right:.6g} if they are interpreted"
    message += f"; with {run.case.phrase}" if run.case.is_variant else ""
    message += f" ({irregular})" if irregular else ""
    return audit.finding(
        "PB909",
        "error",
        "wrong",
        message,
        case=run.case,
        tail=[
            *_results(audit, run),
            f"print('compiled', results[{index}]{subscript(at)}.item(), 'interpreted', {right!r})",
        ],
        evidence=Evidence(expected=right, got=found, worst_index=at, where=run.name_of(index), dtype=kind),
        hint="mend the access to memory first" if irregular else _HINT,
    )


def _results(audit: Audit, run: Results) -> list[str]:
    """Return lines of a reproduction that bind `results` to the outputs and the gradients."""
    lines = [audit.outs, bind("g", standard_cotangents(run.outputs))]
    if run.gradients is None:
        return [*lines, "results = outs"]
    return [*lines, "results = [*outs, *torch.autograd.grad(outs, inputs, g, materialize_grads=True)]"]


RULE = Rule(__doc__, runtime=_run, shrinks=False, late=True)
