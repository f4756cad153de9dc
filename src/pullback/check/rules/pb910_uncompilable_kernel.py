"""uncompilable-kernel (PB910): Triton's compiler rejects a kernel that runs when interpreted.

## What it finds
The function is called in the dtypes that you gave, with float32 in place of float64, and its kernels are interpreted.
Then the front end of Triton's compiler, which needs no GPU, processes each kernel with the types and constants of each
of its launches: those of the example, of calls that take other branches, and of the first, the last and the middle
configuration of an autotuner. A kernel that the front end rejects is an error, with the message of the compiler.

Typical causes are a variable that changes its type or shape in a loop or a branch, a global that is not a
`tl.constexpr`, a name that only one branch defines, a `return` in a loop, and blocks that are too small for `tl.dot`.

## Why it hurts
An interpreter runs a kernel like Python, statement by statement. A compiler gives each variable one type before
anything runs. So the kernel passes every test on the CPU, and raises at its first launch on a GPU.

## Limits
Only the front end runs. Not reported are a kernel that needs too much shared memory, or that a later pass rejects; one
that fails when interpreted, which PB119 or PB001 reports; a failed `tl.static_assert`, a type that an H100 lacks, and a
launch with float64 tensors; and, on a float64 example, a kernel that compiles for bfloat16 or float16. The constants of
a guessed call may not fit each other, and a function need not take every size: so the finding is a warning on a guessed
call, and at other sizes or numbers than those of the example. If the compiler asks for other sizes of blocks on a
variant, there is no finding. The rule runs only where kernels are interpreted: with Triton installed and no
accelerator.

## Bad
```python
import triton
import triton.language as tl

@triton.jit
def sum_kernel(x, out, n, BLOCK: tl.constexpr):
    total = 0.0
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.load(x + i, mask=i < n, other=0.0)
    tl.store(out, tl.sum(total))

class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        ctx.shape = x.shape
        out = x.new_empty(())
        sum_kernel[(1,)](x, out, x.numel(), BLOCK=4)
        return out

    @staticmethod
    def backward(ctx, g):
        return g.expand(ctx.shape)

def inputs():
    return (torch.randn(13, dtype=torch.float64),)
```

## Good
```python
import triton
import triton.language as tl

@triton.jit
def sum_kernel(x, out, n, BLOCK: tl.constexpr):
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.load(x + i, mask=i < n, other=0.0)
    tl.store(out, tl.sum(total))

class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        ctx.shape = x.shape
        out = x.new_empty(())
        sum_kernel[(1,)](x, out, x.numel(), BLOCK=4)
        return out

    @staticmethod
    def backward(ctx, g):
        return g.expand(ctx.shape)

def inputs():
    return (torch.randn(13, dtype=torch.float64),)
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from pullback.check.cases.repro import call_text
from pullback.check.kernel_compilation import Uncompilable, has_other_sizes, uncompilable
from pullback.check.rules._kernels import MAY_MISFIT, at_line, backward_lines, may_misfit, shown_line
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_MOST = 3
"""Number of findings."""
_CHANGES_TYPE = re.compile(
    r"Mismatched type for|redefines it as|inconsistent types|Loop-carried variable|changed type|Return type mismatch"
    r"|cannot reassign constexpr .* in the loop"
)
"""Matches messages about a variable that changes its type or shape in a branch or a loop."""
_ONE_TYPE = "give each variable one type and shape, in all branches and iterations; constants are tl.constexpr"
_SEE_MESSAGE = "Triton's compiler rejects this line; see its message"
_OF_SIZES = "if the function is not meant for these sizes, let it raise an error that says so"


def _run(audit: Audit) -> Iterator[Finding]:
    for found in islice(uncompilable(audit), _MOST):
        yield _finding(audit, found)


def _finding(audit: Audit, found: Uncompilable) -> Finding:
    where = f"kernel {found.kernel} ({shown_line(found.file, found.line)})"
    hint = _ONE_TYPE if _CHANGES_TYPE.search(found.message) else _SEE_MESSAGE
    calls = [f"out = fn({call_text(found.case)})", audit.outs, *backward_lines(found.outputs)]
    finding = audit.finding(
        "PB910",
        "error",
        "wrong",
        f"{where} does not compile: {found.message.rstrip('.')}; launched with {found.arguments}"
        + (f"; with {found.case.phrase}" if found.case.is_variant else ""),
        case=found.case,
        tail=[
            "with interpreter.inside(interpreter.World(lifts=False, specialises=True)) as world:",
            *(f"    {line}" for line in calls),
            "print(*interpreter.refusals(world), sep='\\n')",
            "assert interpreter.refusals(world)",
        ],
        hint=hint,
    )
    if found.case.doubtful or may_misfit(audit):
        finding = replace(finding, severity="warning", verdict="inconclusive", hint=MAY_MISFIT)
    elif has_other_sizes(audit, found.case):
        finding = replace(finding, severity="warning", hint=f"{hint}; {_OF_SIZES}")
    return at_line(audit, finding, found.file, found.line)


RULE = Rule(
    __doc__,
    runtime=_run,
    shrinks=False,
    early=1,
    needs_repeatable=False,
    of_weights="alone",
    of_kernels=True,
)
