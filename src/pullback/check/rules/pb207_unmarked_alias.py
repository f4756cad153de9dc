"""unmarked-alias (PB207): an output aliases an input without autograd's knowledge.

## What it finds
Outputs in the memory of a differentiated input that are not that input marked by `ctx.mark_dirty`. Each is written to
in place, to see what becomes of the input. Where autograd does not know of the alias (`x.detach()`, `x.data`), the
input changes behind its back: an error. Where it knows (`x`, `x.view_as(x)`, a slice), it refuses whatever is written
in place to the output, or later to the input: an info.

## Why it hurts
`out += bias` is an ordinary line of somebody else's code. It changes the input for whoever reads it afterwards, whose
gradient is then that of other numbers; or it raises, far from the function that is the cause.

## Limits
A warning if the output is marked as not differentiable. Sees the example: `x.contiguous()` and `x.to(dtype)` are the
input itself only where there is nothing to do.

## Bad
```python
class ReverseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.detach()

    @staticmethod
    def backward(ctx, g):
        return -g
```

## Good
```python
class ReverseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return -g
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from pullback.check.cases.repro import variables
from pullback.check.derivative.agreement import equal_or_nan
from pullback.check.rules._rule import Rule
from pullback.check.trial import forward
from pullback.dtypes import has_derivative
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.state import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    outputs = len(audit.base_run.outputs)
    for position in range(outputs):
        run = forward(audit.subject, audit.base)
        out = run.outputs[position]
        order = _shared_with(out, run.inputs)
        if order is None:
            continue
        name, what = audit.names[order], "the output" if outputs == 1 else f"output {position}"
        found = _after_write(out, run.inputs[order])
        if found == "refused":
            message = f"{what} is a view of {name}: autograd refuses to change either of them in place afterwards"
            yield audit.finding("PB207", "info", "wrong", message, case=audit.base, hint=_HINT)
        elif found == "written":
            variable = variables(audit.base)[audit.base.wrt[order]]
            yield audit.finding(
                "PB207",
                "error" if out.requires_grad else "warning",
                "wrong",
                f"{what} is in the memory of {name} and autograd does not know: "
                f"an in-place change of it changes {name} for whoever reads that afterwards",
                case=audit.base,
                tail=[
                    f"outs = [o for o in {_LEAVES} if isinstance(o, torch.Tensor)]",
                    f"outs[{position}].add_(1)",
                    f"print('{name} is now', {variable})",
                ],
                hint=_HINT,
            )


_LEAVES = "torch.utils._pytree.tree_leaves(out)"
_HINT = "return a copy (x.clone()), or change the input in place, call ctx.mark_dirty on it and return it"


def _shared_with(out: Tensor, inputs: list[Tensor]) -> int | None:
    """Return which input an output shares its memory with, without being that input, marked as changed."""
    if not has_derivative(out) or not out.numel() or any(out is x for x in inputs):
        return None
    if any(t.layout != torch.strided for t in (out, *inputs)):
        return None
    where = out.untyped_storage().data_ptr()
    return next((k for k, x in enumerate(inputs) if x.untyped_storage().data_ptr() == where), None)


def _after_write(out: Tensor, x: Tensor) -> Literal["refused", "written", "apart"]:
    """Return the effect on the input of an in-place operation on the output."""
    before = x.detach().clone()
    try:
        out.add_(1)
    except RuntimeError:
        return "refused"
    return "apart" if equal_or_nan(before, x.detach()) else "written"


RULE = Rule(__doc__, runtime=_run, blames="forward", kinds=("function",), needs_cpu=True)
