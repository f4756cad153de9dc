"""strided-cotangent-mishandled (PB502): a non-contiguous cotangent changes the gradient or makes the backward raise.

## What it finds
The backward runs with cotangents that are transposed, expanded from one number, sliced with a step, part of longer
rows, and lazily conjugated. The gradients must equal those of contiguous cotangents with the same values.

## Why it hurts
The cotangent of `out.sum()` is expanded, that of `out.t()` transposed, that of `torch.cat` part of longer rows. A
backward that reads it with the strides of the output, or takes a `view`, gets wrong rows, reads out of bounds, or
raises. A test with contiguous cotangents, such as `gradcheck`, does not notice.

## Limits
The rule runs on the example alone.

## Bad
```python
class Softsign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / (1 + x.abs())

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        slope = 1 / (1 + x.abs()) ** 2
        return (g.view(-1) * slope.view(-1)).view(x.shape)

def inputs():
    return (torch.randn(3, 5, dtype=torch.float64, requires_grad=True),)
```

## Good
```python
class Softsign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / (1 + x.abs())

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        slope = 1 / (1 + x.abs()) ** 2
        return g * slope

def inputs():
    return (torch.randn(3, 5, dtype=torch.float64, requires_grad=True),)
```
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from pullback.check.cases import layouts
from pullback.check.cases.repro import bind
from pullback.check.derivative.agreement import difference, gradients
from pullback.check.rules._rule import Rule
from pullback.check.trial import Raised, standard_cotangents
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


_CANCELLED = 1e-6
"""Of the usual gradient: less is rounding where all of it cancels, as after a mean is taken off."""
_MORE = 3
"""Elements by which rows are longer in memory, of cotangents that are part of them."""


def _run(audit: Audit) -> Iterator[Finding]:
    if not audit.backward_works:
        return
    plain = standard_cotangents(audit.base_run.roots)
    usual = [g for g in gradients(audit.subject, audit.base) if g is not None and g.numel() and g.isfinite().all()]
    largest = max((float(g.abs().max()) for g in usual), default=0.0)
    floor = _CANCELLED * max(largest, _CANCELLED * _mean_slope(audit, plain))
    for how, change in _CHANGES:
        odd = [change(g) for g in plain]
        if all(a.stride() == b.stride() and not a.is_conj() for a, b in zip(odd, plain, strict=True)):
            continue
        dense = [g.clone().contiguous() for g in odd]
        expected = gradients(audit.subject, audit.base, dense)
        try:
            where = difference(expected, gradients(audit.subject, audit.base, odd), floor=floor)
            what = where and f"the gradient of {audit.names[where.tensor_index]} changes: {where}"
        except Raised as error:
            what = str(error)
        if what:
            yield audit.finding(
                "PB502",
                "error",
                "wrong",
                f"with {how} cotangent, {what}",
                case=audit.base,
                tail=[
                    audit.outs,
                    bind("g", odd),
                    "plain = [h.resolve_conj().contiguous() for h in g]",
                    "expected = torch.autograd.grad(outs, inputs, plain, retain_graph=True, allow_unused=True)",
                    "print('contiguous:', expected)",
                    f"print('{how}:', torch.autograd.grad(outs, inputs, g, allow_unused=True))",
                ],
                hint="cotangents come in any strides: use reshape instead of view, and .contiguous() before a kernel",
            )
            return


def _mean_slope(audit: Audit, cotangents: list[Tensor]) -> float:
    """Return the slope of outputs that are proportional to the inputs: far below it a gradient is rounding."""
    sizes = [
        max((float(t.detach().abs().max()) for t in tensors if t.numel()), default=0.0)
        for tensors in (audit.base_run.roots, cotangents, audit.base.tensors)
    ]
    slope = sizes[0] * sizes[1] / sizes[2] if sizes[2] else 0.0
    return slope if math.isfinite(slope) else 0.0


def _transposed(g: Tensor) -> Tensor:
    return g.transpose(-1, -2).contiguous().transpose(-1, -2) if g.ndim >= 2 else g


def _batch_transposed(g: Tensor) -> Tensor:
    return g.transpose(0, 1).contiguous().transpose(0, 1) if g.ndim >= 3 else g


def _expanded(g: Tensor) -> Tensor:
    return g.flatten()[:1].reshape((1,) * g.ndim).expand(g.shape) if g.numel() and g.ndim else g


def _sliced(g: Tensor) -> Tensor:
    return layouts.sliced(g) if g.ndim else g


def _narrowed(g: Tensor) -> Tensor:
    return layouts.within(g, _MORE) if g.ndim else g


_CHANGES = (
    ("a transposed", _transposed),
    ("a batch-transposed", _batch_transposed),
    ("an expanded", _expanded),
    ("a sliced", _sliced),
    ("a narrowed", _narrowed),
    ("a conjugated", lambda g: layouts.conjugated(g) if g.is_complex() else g),
)

RULE = Rule(
    __doc__,
    runtime=_run,
    of_optional=True,
    blames="backward",
    shrinks=False,
    early=1,
    context="strided cotangents",
)
