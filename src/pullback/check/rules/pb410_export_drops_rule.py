"""export-drops-rule (PB410): torch.export keeps the forward and replaces the custom backward.

## What it finds
A module that calls the function is exported by `torch.export.export` (non-strict; with `--deep` strict too), and the
gradient of the exported module is compared with the eager one. PyTorch's exporter inlines the forward of every
`autograd.Function` and differentiates it by autograd. A difference is an info, in one line for all functions of a
report, since the author of the function cannot prevent it. A failing export is an info too.

## Why it hurts
A straight-through estimator, a surrogate or a clipped gradient is gone after the export, and training the exported
module goes on, with a zero gradient for an estimator. A forward that computes on detached tensors, in place, or by an
iteration also loses its gradient.

## Limits
Nothing is reported if the eager gradient itself is wrong by mistake (PB101), or at a kink.

## Bad
```python
class RoundStraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, g):
        return g
```

## Good
```python
class Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.tanh(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * (1 - out * out)
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.check.contexts.compare import GRADIENT, PRINT, ContextCall, compare
from pullback.check.contexts.eager import EagerReference, Pure, base_setting, is_comparable, may_drop, on_smallest
from pullback.check.rules._rule import Rule
from pullback.check.trial import reseed
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    setting = base_setting(audit)
    if setting is None or not may_drop(audit):
        return
    for found in _find(audit, setting):
        if found.verdict == "wrong":
            found = on_smallest(audit, setting, found, lambda small: next(_find(audit, small), None))
        yield found


def _find(audit: Audit, setting: EagerReference) -> Iterator[Finding]:
    return compare(audit, "PB410", [setting], _WAYS if audit.options.deep else _WAYS[:1])


class _ExportedModule(torch.nn.Module):
    def __init__(self, function: Pure) -> None:
        super().__init__()
        self.function = function

    def forward(self, *xs: Tensor) -> tuple[Tensor, ...]:
        return self.function(*xs)


def _exported(strict: bool) -> Callable[[EagerReference], Sequence[Tensor | None]]:
    def run(setting: EagerReference) -> Sequence[Tensor | None]:
        leaves = setting.leaves()
        reseed()
        program = torch.export.export(_ExportedModule(setting.function()), tuple(leaves), strict=strict)
        module = program.module()
        reseed()
        return setting.gradient_from(module(*leaves), leaves)

    return run


def _way(strict: bool) -> ContextCall:
    return ContextCall(
        "torch.export.export(strict=True)" if strict else "torch.export.export",
        _exported(strict),
        [
            "class Module(torch.nn.Module):",
            "    def forward(self, *xs):",
            "        return call(*xs)",
            f"module = torch.export.export(Module(), tuple(inputs), strict={strict}).module()",
            "outs = module(*inputs)",
            *GRADIENT,
            *PRINT,
        ],
        hint="train before exporting, or make it a `pullback.function(derivative_of=…)` or a torch.library custom op: "
        "these keep their derivative",
        severity="info",
        cause="PyTorch's exporter drops the backward of every autograd.Function",
        context="traced",
        refused_as="info",
    )


_WAYS = (_way(strict=False), _way(strict=True))

RULE = Rule(
    __doc__,
    runtime=_run,
    shrinks=False,
    late=True,
    column="export",
    compared=is_comparable,
    compiles=True,
    of_pytorch=True,
    context="torch.export",
)
