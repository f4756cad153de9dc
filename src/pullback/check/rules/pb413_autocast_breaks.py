"""autocast-breaks (PB413): under autocast the backward raises, or the gradient is grossly off.

## What it finds
The forward runs under `torch.autocast("cpu", dtype=torch.bfloat16)` and the backward outside of it, as in training:
with float32 inputs, and with bfloat16 inputs, as previous layers return. It is an error if the backward raises after a
forward that ran. A forward that raises is an info, since the error is clear; it is a warning if an operation in it got
tensors of two dtypes, of which autocast made one. With float32 inputs, a gradient that is
not finite, or off by more than a tenth of its largest element, is an error, unless rounding the inputs to bfloat16
alone changes it nearly as much. If the function iterates for as long as its values require, it is a warning.

## Why it hurts
Under autocast matrix products return bfloat16. The backward then gets a bfloat16 cotangent and float32 tensors, and `g
@ w` raises in the first step of mixed-precision training.

## Limits
Only the CPU and bfloat16 are tested. The dtype of the gradient is not checked, since the engine casts it to that of the
input.

## Bad
```python
class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, g.t() @ x


def inputs():
    return torch.randn(3, 5), torch.randn(4, 5)
```

## Good
```python
class Linear(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, g.t() @ x


def inputs():
    return torch.randn(3, 5), torch.randn(4, 5)
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.check.cases import layouts
from pullback.check.cases.iterations import iterates
from pullback.check.contexts.compare import PRINT, DifferenceText, RefusalText, differing, preamble, refusing
from pullback.check.contexts.eager import EagerReference, setting_of, settings
from pullback.check.derivative.agreement import difference
from pullback.check.find.kernels import as_written
from pullback.check.rules._kernels import rounding
from pullback.check.rules._rule import Rule
from pullback.check.trial import Raised, guarded, reseed
from pullback.report.model import Finding, Severity

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_GROSS = 0.1
_SPREAD = 4.0
_NAME = 'torch.autocast("cpu", dtype=torch.bfloat16)'
_NO_KERNEL = re.compile(r"not implemented for|Low precision dtypes not supported")
_MIXED = re.compile(r"same dtype|expected scalar type|dtype .*!=|dtypes|to have dtype", re.IGNORECASE)
"""Matches errors about tensors of two dtypes: autocast has made one of them narrow, and the function the other not."""
_CAST = "inputs = [x.detach().bfloat16().requires_grad_() for x in inputs]"
_CODE = (
    f"with {_NAME}:",
    "    outs = call(*inputs)",
    "gs = [g.to(out.dtype) for g, out in zip(cotangents, outs)]",
    "got = torch.autograd.grad(outs, inputs, gs, allow_unused=True)",
    *PRINT,
)
_HINT = "decorate forward and backward with torch.amp.custom_fwd and custom_bwd, or cast in both"


def _run(audit: Audit) -> Iterator[Finding]:
    single = _single(audit)
    if single is None:
        return
    audit.events.beat()
    calls = rounding(_CODE) if audit.subject.is_interpreted else _CODE
    code = [*preamble(single), *calls]
    try:
        got = _under_autocast(single)
    except Raised as error:
        yield _raising(refusing(audit, "PB413", single, error, RefusalText(_NAME, code, _HINT, severity="info")), error)
        return
    try:
        _under_autocast(single, torch.bfloat16)
    except Raised as error:
        if error.stage != _NAME:
            refused = RefusalText(_NAME, [*preamble(single), _CAST, *calls], _HINT, severity="info")
            yield _raising(refusing(audit, "PB413", single, error, refused), error, " of bfloat16 inputs")
            return
    if difference(single.gradients, got, _GROSS) is None:
        return
    sensitivity = _sensitivity(audit, single)
    if sensitivity is None:
        return
    different = difference(single.gradients, got, _SPREAD * sensitivity + _GROSS)
    if different is not None:  # how far an iteration gets may depend on the precision
        severity: Severity = "warning" if iterates(audit.subject, audit.base, audit.base) else "error"
        yield differing(audit, "PB413", single, different, DifferenceText(_NAME, code, _HINT, severity))


def _single(audit: Audit) -> EagerReference | None:
    """Return the reference in float32, where interpreted kernels round as they do under autocast; `None` if none."""
    if not audit.subject.is_interpreted:
        return next((s for s in settings(audit) if all(x.dtype == torch.float32 for x in s.inputs)), None)
    case = next((case for case in layouts.other_dtypes(audit.base) if case.label == "float32"), None)
    with as_written(True):
        return None if case is None else setting_of(audit.subject, case)


def _raising(found: Finding, error: Raised, of: str = "") -> Finding:
    """Return the finding as an error, if the forward ran and the backward raises by the function's own fault."""
    if error.stage == _NAME and _MIXED.search(str(error.error)) and not error.is_deliberate:
        return replace(found, severity="warning", message=found.message.replace("unsupported under", "raises under", 1))
    if error.stage == _NAME or _NO_KERNEL.search(str(error.error)):
        return found
    said = f"after a forward{of} under {_NAME} the backward raises: {found.message.partition(': ')[2]}"
    return replace(found, severity="error", verdict="wrong", message=said)


def _under_autocast(single: EagerReference, dtype: torch.dtype = torch.float32) -> list[Tensor | None]:
    leaves = [leaf.detach().to(dtype).requires_grad_() for leaf in single.leaves()]
    reseed()
    with as_written(single.subject.is_interpreted):
        with guarded(_NAME), torch.autocast("cpu", dtype=torch.bfloat16):
            outs = single.function()(*leaves)
        with guarded(f"the backward after a forward under {_NAME}"):
            return single.gradient_from(outs, leaves)


def _sensitivity(audit: Audit, single: EagerReference) -> float | None:
    """Return how far rounding the inputs to bfloat16 moves the gradient, relative to its largest element."""
    with as_written(audit.subject.is_interpreted):
        rounded = setting_of(audit.subject, single.case.map_inputs(lambda t: t.bfloat16().float(), "rounded"))
    if rounded is None:
        return None
    return max(map(_distance, single.gradients, rounded.gradients))


def _distance(exact: Tensor | None, rounded: Tensor | None) -> float:
    if exact is None or rounded is None or not exact.numel() or exact.shape != rounded.shape:
        return 0.0
    return float((exact - rounded).abs().max() / exact.abs().max().clamp(min=1e-30))


def _is_compared(audit: Audit) -> bool:
    """Whether the example was run in float32: autocast leaves other dtypes alone."""
    return _single(audit) is not None


RULE = Rule(__doc__, runtime=_run, column="autocast", compared=_is_compared, needs_cpu=True, context="autocast")
