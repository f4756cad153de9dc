"""unreached-branch (PB908): no call of the audit reaches a branch of a Triton kernel, or a loop's second iteration.

## What it finds
The kernels of the function are interpreted, and the audit looks for inputs that take other branches: by other options,
sizes around the blocks, and both. An info names the conditions that were always true or always false, the loops that
never had a second iteration, and the kernels that use the `tl.program_id` of a grid axis along which they never had two
programs.

## Why it hurts
Most faults of published kernels sit where the tests do not go: a bias that no test passes, a second block, a tail. No
rule has checked a branch that no call reached.

## Limits
An info is not a fault: a branch may be for another type or another device. A branch nested in an unreached one is not
named. A condition inside an expression (`a if c else b`, `tl.where`) is not examined. The rule runs only where
kernels are interpreted: with Triton installed and no accelerator.

## Bad
```python
import triton
import triton.language as tl

@triton.jit
def scale_kernel(x, scale, out, n, HAS_SCALE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = 2 * tl.load(x + i, mask=i < n, other=0.0)
    if HAS_SCALE:
        value = value * tl.load(scale)
    tl.store(out + i, value, mask=i < n)

def scaled(x, scale=None):
    x = x.contiguous()
    out = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 4),)](x, scale, out, x.numel(), HAS_SCALE=scale is not None, BLOCK=4)
    return out

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return scaled(x)

    @staticmethod
    def backward(ctx, g):
        return scaled(g)

def inputs():
    return (torch.randn(13, dtype=torch.float64),)
```

## Good
```python
import triton
import triton.language as tl

@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, 2 * tl.load(x + i, mask=i < n, other=0.0), mask=i < n)

def doubled(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 4),)](x, out, x.numel(), BLOCK=4)
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

import inspect
import linecache
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.kernel_runs import kernel_runs
from pullback.check.rules._kernels import at_line, shown_line
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_SHOWN = 4
_ASKS = re.compile(r"\bprogram_id\(\s*(?:axis\s*=\s*)?([012])\b")
_NAME = re.compile(r"\bdef (\w+)")
_HINT = "give inputs that lead there: an optional argument, another option, a longer tensor"


def _run(audit: Audit) -> Iterator[Finding]:
    taken: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    for run in kernel_runs(audit):
        for file, line, way in run.world.ways:
            taken[file, line].add(way)
    missed = {place: what for place, ways in sorted(taken.items()) if (what := _missed(*place, ways))}
    if not missed:
        return
    told = list(missed.values())
    more = f"; and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    message = f"some branches of its kernels were never reached: {'; '.join(told[:_SHOWN])}{more}"
    finding = audit.finding("PB908", "info", "inconclusive", message, hint=_HINT)
    yield at_line(audit, finding, *next(iter(missed)))


def _missed(file: str, line: int, ways: set[str]) -> str:
    """Say where programs never went at a statement, or on the grid of a kernel; empty if they went everywhere."""
    shown = f"`{linecache.getline(file, line).strip().rstrip(':')}` ({shown_line(file, line)})"
    if len(ways) == 1 and not ways.isdisjoint({"true", "false"}):
        return f"{shown} is always {next(iter(ways))}"
    if ways == {"never"}:
        return f"{shown} never runs"
    if ways in ({"once"}, {"never", "once"}):
        return f"{shown} never has a second iteration"
    return _alone(file, line, ways)


def _alone(file: str, line: int, ways: set[str]) -> str:
    """Say along which axis, whose index it asks for, the kernel that begins at a line never has two programs."""
    source = "".join(inspect.getblock(linecache.getlines(file)[line - 1 :]))
    for axis in sorted(set(_ASKS.findall(source))):
        if f"one along axis {axis}" in ways and f"several along axis {axis}" not in ways:
            return f"`{_NAME.findall(source)[0]}` ({shown_line(file, line)}) never has two programs along axis {axis}"
    return ""


RULE = Rule(__doc__, runtime=_run, shrinks=False, of_weights="alone")
