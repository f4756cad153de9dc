"""value-changes-under-grad (PB117): the forward's value depends on whether gradients are required.

## What it finds
The outputs under `no_grad`, with all inputs requiring grad and with each input alone requiring grad are compared bit
for bit.

## Why it hurts
The evaluated model is not the trained one, and freezing a parameter changes the output.

## Limits
Random functions run from the same random state each time. A function with a generator of its own therefore looks as if
its value changed.

## Bad
```python
class Shrink(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.tanh(x) if x.requires_grad else x / (1 + x.abs())

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 - torch.tanh(x) ** 2)
```

## Good
```python
class Shrink(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 - torch.tanh(x) ** 2)
```
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from pullback.check.cases.repro import definition
from pullback.check.derivative.agreement import TensorDifference, difference
from pullback.check.rules._rule import Rule
from pullback.check.trial import ForwardRun, Raised, forward
from pullback.dtypes import has_reals
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    if _differs(audit.base_run, forward(audit.subject, audit.base)):
        return  # not even the same run twice: determinism is another property
    for how, code, run in _ways(audit):
        where = _differs(audit.base_run, run)
        if where is None:
            continue
        is_rounding = _differs(audit.base_run, run, rounding=None) is None
        yield audit.finding(
            "PB117",
            "info" if is_rounding else "error",
            "wrong",
            f"the value of output {where.tensor_index} changes {how}{', by rounding alone' * is_rounding}: {where}",
            case=audit.base,
            tail=[
                *definition("value_at", audit.base, ["return out"]),
                *code,
                "print('at first:', out, 'then:', other)",
            ],
            hint="compute the same value whatever requires grad; read ctx.needs_input_grad only to decide what to save",
        )
        return


def _ways(audit: Audit) -> Iterator[tuple[str, Sequence[str], ForwardRun]]:
    """Yield ways to call the function again, each with lines that bind `other` to the result."""
    count = len(audit.names)
    moved = [t.clone() for t in audit.base.tensors]
    plain = "value_at([x.detach() for x in inputs])"
    ways: list[tuple[str, Sequence[str], dict[str, object]]] = [
        ("under no_grad", ("with torch.no_grad():", f"    other = {plain}"), {"moved": moved}),
        ("when no input requires grad", (f"other = {plain}",), {"mask": [False] * count}),
    ]
    for k in range(count if count > 1 else 0):
        chosen = f"other = value_at([x.detach().requires_grad_(k == {k}) for k, x in enumerate(inputs)])"
        mask = [k == only for only in range(count)]
        ways.append((f"when only {audit.names[k]} requires grad", (chosen,), {"mask": mask}))
    for how, code, options in ways:
        try:
            yield how, code, forward(audit.subject, audit.base, **options)  # type: ignore[arg-type]
        except Raised:
            continue


def _differs(first: ForwardRun, second: ForwardRun, rounding: float | None = 0.0) -> TensorDifference | None:
    floats = [(a.detach(), b.detach()) for a, b in zip(first.outputs, second.outputs, strict=False) if has_reals(a)]
    with torch.no_grad():
        return difference([a for a, _ in floats], [b for _, b in floats], rounding)


RULE = Rule(__doc__, runtime=_run, blames="forward", column="eager")
