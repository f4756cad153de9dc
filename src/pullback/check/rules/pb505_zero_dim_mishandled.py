"""zero-dim-mishandled (PB505): a zero-dimensional tensor is rejected, gains a dimension, or gives another result.

## What it finds
If all inputs and outputs have the same shape, the function is called twice on a single element: as a tensor of shape
`(1,)`, and as a zero-dimensional tensor. Value and gradient must agree, and the shape must stay `()`.

## Why it hurts
Scalars of a model are zero-dimensional tensors: `tensor.sum()`, a learned temperature, a loss. An output of shape
`(1,)` in their place broadcasts in later operations, and `x.shape[0]` raises.

## Limits
A forward that raises is an info, since the function may be for vectors alone. A backward that raises, or a wrong shape,
is a warning; a different value is an error. Functions of tensors of several shapes are not checked.

## Bad
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.atleast_1d(x) ** 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (2 * g * x).reshape(x.shape)

def inputs():
    return (torch.randn(5, dtype=torch.float64, requires_grad=True),)
```

## Good
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x

def inputs():
    return (torch.randn(5, dtype=torch.float64, requires_grad=True),)
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.derivative.agreement import difference
from pullback.check.rules._rule import Rule
from pullback.check.trial import ForwardRun, Raised, forward, vjp
from pullback.report.model import Finding, Severity

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    tensors = list(audit.base.all_tensors.values())
    shapes = {t.shape for t in (*tensors, *audit.base_run.outputs)}
    if not audit.backward_works or len(shapes) != 1 or not tensors[0].ndim or not tensors[0].numel():
        return
    one = audit.base.map_tensors(lambda t: t.flatten()[:1].clone(), "one element")
    none = audit.base.map_tensors(lambda t: t.flatten()[0].clone(), "no dimension")
    try:
        vector = forward(audit.subject, one)
        expected = _gradients(vector)
    except Raised:
        return
    if all(out.shape == (1,) for out in vector.outputs):
        yield from _compare(audit, none, vector, expected)


def _compare(audit: Audit, none: Case, vector: ForwardRun, expected: list[Tensor | None]) -> Iterator[Finding]:
    """Compare the results for zero-dimensional tensors with those for tensors of one element."""
    try:
        run = forward(audit.subject, none)
    except Raised as error:
        yield _finding(audit, none, "info", str(error))
        return
    shapes = [tuple(out.shape) for out in run.outputs]
    if any(shapes):
        yield _finding(audit, none, "warning", f"the outputs have shapes {shapes}")
        return
    where = difference([out.detach() for out in vector.outputs], [out.detach().reshape(1) for out in run.outputs])
    if where is not None:
        yield _finding(audit, none, "error", f"output {where.tensor_index} is not the number for one element: {where}")
        return
    try:
        got = [g if g is None else g.reshape(1) for g in _gradients(run)]
    except Raised as error:
        yield _finding(audit, none, "warning", str(error))
        return
    where = difference(expected, got)
    if where is not None:
        what = f"the gradient of {audit.names[where.tensor_index]} is not the number for one element: {where}"
        yield _finding(audit, none, "error", what)


def _gradients(run: ForwardRun) -> list[Tensor | None]:
    return vjp(run, [torch.ones_like(root) for root in run.roots])


def _finding(audit: Audit, case: Case, severity: Severity, what: str) -> Finding:
    return audit.finding(
        "PB505",
        severity,
        "wrong" if severity == "error" else "unsupported",
        f"with tensors of no dimension, {what}",
        case=case,
        tail=[audit.outs, "print(outs, torch.autograd.grad([o.sum() for o in outs], inputs, allow_unused=True))"],
        hint="let shapes pass through: no atleast_1d, no x.shape[0] for the number of elements",
    )


RULE = Rule(__doc__, runtime=_run, blames="forward", shrinks=False, context="inputs without dimensions")
