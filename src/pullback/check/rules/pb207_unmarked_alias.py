"""unmarked-alias (PB207): an output aliases an input without autograd's knowledge.

## What it finds
Outputs that share memory with a differentiable input and are not that input marked by `ctx.mark_dirty`. The rule writes
to each such output in place and looks at the input. If autograd does not know of the alias (`x.detach()`, `x.data`),
the input changes unnoticed: an error. If autograd knows it (`x`, `x.view_as(x)`, a slice), it rejects in-place writes
to the output and later ones to the input: an info.

## Why it hurts
`out += bias` is an ordinary line in calling code. It changes the input, so later uses of the input get the gradient of
other values; or it raises, far from the function that caused it.

## Limits
It is a warning if the output is marked as non-differentiable. The rule runs on the example alone: `x.contiguous()` and
`x.to(dtype)` return the input itself only if there is nothing to convert.

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
from pullback.dtypes import has_reals
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    outputs = len(audit.base_run.outputs)
    for position in range(outputs):
        run = forward(audit.subject, audit.base)
        out = run.outputs[position]
        input_index = _shared_with(out, run.inputs)
        if input_index is None:
            continue
        name, what = audit.names[input_index], "the output" if outputs == 1 else f"output {position}"
        found = _after_write(out, run.inputs[input_index])
        if found == "refused":
            message = f"{what} is a view of {name}: autograd refuses to change either of them in place afterwards"
            yield audit.finding("PB207", "info", "wrong", message, case=audit.base, hint=_HINT)
        elif found == "written":
            variable = variables(audit.base)[audit.base.wrt[input_index]]
            yield audit.finding(
                "PB207",
                "error" if out.requires_grad else "warning",
                "wrong",
                f"{what} is in the memory of {name} and autograd does not know: "
                f"an in-place change of it changes {name} for all later uses",
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
    if not has_reals(out) or not out.numel() or any(out is x for x in inputs):
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
