"""wrong-gradient-shape (PB104): a returned gradient has another shape than its input.

## What it finds
The shape of each gradient, as `backward` returned it. If the input's shape can be expanded to the gradient's, PyTorch's
engine silently sums the gradient down to it; otherwise the engine raises. So a `(B, 1)` factor times a `(B,)` input
gives a `(B, B)` gradient, which is silently summed to a wrong `(B,)` one. If the forward broadcasts the input and the
gradient has the broadcast shape, that is PB115.

## Why it hurts
Either the first backward raises or, if the sizes happen to fit, the gradient is silently wrong.

## Limits
The rule runs on the example and on its variants of size 1. It is an info if the engine's sum happens to be correct, or
only removes dimensions of size 1. It is a warning if a whole-number argument may no longer fit the size, and on guessed
shapes if other shapes work. Kernels do not refuse sizes that do not fit each other: where they are interpreted, a
variant that breaks a relation of the example's sizes, such as a bias of as many elements as there are heads and
channels, is left out.

## Bad
```python
class Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sum(dim=1)

    @staticmethod
    def backward(ctx, g):
        return g

def inputs():
    return (torch.randn(3, 5, dtype=torch.float64, requires_grad=True),)
```

## Good
```python
class Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.columns = x.shape[1]
        return x.sum(dim=1)

    @staticmethod
    def backward(ctx, g):
        return g.unsqueeze(1).expand(-1, ctx.columns)

def inputs():
    return (torch.randn(3, 5, dtype=torch.float64, requires_grad=True),)
```
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from pullback.check.case import Case
from pullback.check.cases import sizes
from pullback.check.derivative.first_order import FirstOrder
from pullback.check.derivative.recorder import misshapen
from pullback.check.kernel_runs import is_as_valid
from pullback.check.rules._reproduction import returned
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


_BACKWARD = ("torch.autograd.backward(outs, [torch.ones_like(o) for o in outs])",)


def _run(audit: Audit) -> Iterator[Finding]:
    broadcast = {bad.name for bad in misshapen(audit.subject, audit.base) if bad.is_broadcast}  # reported by PB115
    for case in (audit.base, *_ones(audit), *(audit.given if audit.guessed else ())):
        for bad in misshapen(audit.subject, case):
            if bad.is_broadcast or (bad.summed and bad.name in broadcast):
                continue
            raises = not bad.summed
            result = None if raises else audit.compare(case)
            is_right = result is not None and not result.error and bad.name not in _wrong(result)
            harmless = is_right or (bad.summed and prod(bad.returned) == prod(bad.expected))  # of ones: nothing to add
            if harmless and case.doubtful:
                continue
            yield audit.finding(
                "PB104",
                "info" if harmless else "warning" if case.doubtful else "error",
                "wrong",
                f"backward returned a gradient of shape {bad.returned} for {bad.name} of shape {bad.expected}"
                + ("; the engine rejects it" if raises else "; the engine silently sums it"),
                case=case,
                tail=[audit.outs, *(_BACKWARD if raises else returned("shape"))],
                hint="return a gradient of the input's own shape; no squeeze() without a dim",
            )
            return


def _wrong(result: FirstOrder) -> set[str]:
    """Return the names of the inputs whose gradient is wrong."""
    return {result.case.names[result.case.wrt[c.input_index]] for c in result.wrong}


def _ones(audit: Audit) -> Iterator[Case]:
    ones = (case for case in sizes.uniform_sizes(audit.base) if case.label.endswith("-> 1"))
    return (case for case in ones if audit.domain.is_parted(case) and is_as_valid(audit, audit.base, case))


RULE = Rule(__doc__, runtime=_run, blames="backward", kinds=("function",), column="eager", needs_repeatable=False)
