"""computes-again (PB705): the backward recomputes values that it already has.

## What it finds
Operations of the backward whose result equals a saved tensor, or an output of the forward, bit for bit.

## Why it hurts
A tensor that is saved and recomputed costs both memory and time. If the backward recomputes an output, save the output
in place of the input: it is mostly alive anyway, and the backward becomes shorter.

## Limits
The finding is advice: a warning for a saved tensor, and an info for an output, since a backward may recompute the
forward on purpose to save memory. Copies and casts are not counted. The rule compares on the example alone, and skips
masks, integers and tensors whose elements are all equal.

## Bad
```python
class Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.sigmoid(x)
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, g):
        x, out = ctx.saved_tensors
        return g * torch.sigmoid(x) * (1 - out)
```

## Good
```python
class Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.sigmoid(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * out * (1 - out)
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from pullback.check.derivative.recorder import BackwardOp, Trace, describe, equal, is_plain, storage_of, storages
from pullback.check.rules._rule import Rule
from pullback.dtypes import has_reals
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_COPIES = ("aten.clone", "aten._to_copy", "aten.copy_", "aten.contiguous", "aten.cat", "aten.stack")


def _run(audit: Audit) -> Iterator[Finding]:
    found = audit.trace
    if found is None:
        return
    reported: set[int] = set()
    for step in found.steps:
        for what, severity, known in _known(found):
            if storage_of(known) not in reported and _makes(step, known):
                reported.add(storage_of(known))
                yield audit.finding(
                    "PB705",
                    "warning" if severity == "warning" else "info",
                    "wrong",
                    f"{step.name} in the backward computes again {what} ({describe(known)})",
                    case=audit.base,
                    hint="use the existing tensor; or do not save it, if memory matters more than time",
                )


def _known(found: Trace) -> Iterator[tuple[str, str, Tensor]]:
    """Yield the tensors available without computing: residuals, then the other outputs."""
    held = storages(found.run.inputs)
    for t in found.call.kept:
        if has_reals(t) and is_plain(t) and storage_of(t) not in held:
            yield "a tensor that was kept", "warning", t
    for k, out in enumerate(found.run.outputs):
        if has_reals(out) and is_plain(out) and not found.keeps(out) and storage_of(out) not in held:
            yield f"output {k}", "info", out


def _makes(step: BackwardOp, known: Tensor) -> bool:
    """Whether a step computed the numbers of `known` from others."""
    if step.is_view or step.name in _COPIES or any(_is(t, known) for t in step.read):
        return False
    return any(_is(t, known) for t in step.made)


def _is(t: Tensor, known: Tensor) -> bool:
    return t.dtype is known.dtype and t.shape == known.shape and equal(t, known)


RULE = Rule(__doc__, runtime=_run, blames="backward", kinds=("function",), shrinks=False, needs_cpu=True)
