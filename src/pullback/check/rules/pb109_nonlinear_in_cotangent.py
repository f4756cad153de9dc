"""nonlinear-in-cotangent (PB109): the backward is not linear in the cotangent.

## What it finds
The backward b must be linear in the cotangent: b(4 g) = 4 b(g), b(-g) = -b(g) and b(g + h) = b(g) + b(h). The rule
tests the three identities on the backward itself, without finite differences. The test is therefore exact, in every
dtype and for any noise of the forward.

## Why it hurts
Loss weights, gradient accumulation, mixed-precision loss scaling and sums over branches all rely on linearity. Without
it, each of them changes the direction of the gradient, not just its length.

## Limits
Gradient clipping and sign gradients are nonlinear on purpose. They are `intended` if their structure shows it (see
PB101), and a warning if only words say so. A gradient that is the same for a cotangent, four times it and its negative
is an error unless words declare it: the forward may be flat, but no weight of the loss reaches it. A difference below
two per cent is a warning, since an iteration that solves the adjoint up to a tolerance leaves one.

## Bad
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g.abs()
```

## Good
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g
```
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.cases.repro import bind
from pullback.check.derivative.agreement import ignores_cotangent
from pullback.check.derivative.intent import severity_of
from pullback.check.rules._rule import Rule
from pullback.check.trial import standard_cotangents
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


_B = ("def b(g):", "    return torch.autograd.grad(outs, inputs, g, retain_graph=True, materialize_grads=True)")
_CODE = {
    "backward(4 g) = 4 backward(g)": (*_B, "print('b(4 g):', b([4 * a for a in g]), '4 b(g):', [4 * a for a in b(g)])"),
    "backward(-g) = -backward(g)": (*_B, "print('b(-g):', b([-a for a in g]), '-b(g):', [-a for a in b(g)])"),
    "backward(0) = 0": (*_B, "print('b(0):', b([0 * a for a in g]))"),
    "backward(g + h) = backward(g) + backward(h)": (
        *_B,
        "h = [(1 - 2 * (torch.arange(o.numel()) % 2)).reshape(o.shape).to(o.dtype) for o in outs]",
        "print('b(g + h):', b([a + c for a, c in zip(g, h)]), 'b(g) + b(h):', [a + c for a, c in zip(b(g), b(h))])",
    ),
}

_SMALL = 0.02
"""Part of a gradient that an iteration with a wide tolerance leaves."""
_BY_TOLERANCE = " (a small difference, as left by an iteration with a tolerance)"


def _run(audit: Audit) -> Iterator[Finding]:
    found = audit.nonlinearity
    if found is None:
        return
    law, where = found
    intent = audit.any_intent
    if intent is not None and intent.sign not in _STATED and _is_ignored(audit, where.tensor_index):
        intent = None
    is_small = (
        isinstance(where.got, float)
        and isinstance(where.expected, float)
        and math.isclose(where.got, where.expected, rel_tol=_SMALL)
    )
    yield audit.finding(
        "PB109",
        severity_of(intent) if intent else "warning" if is_small else "error",
        "intended" if intent else "unstable" if is_small else "wrong",
        f"the backward is not linear in the cotangent: {law} fails for {audit.names[where.tensor_index]}, {where}"
        + (f" (apparently on purpose: {intent.reason})" if intent else _BY_TOLERANCE if is_small else ""),
        case=audit.base,
        tail=[audit.outs, bind("g", standard_cotangents(audit.base_run.roots)), *_CODE[law]],
        hint="multiply by the cotangent once; take no abs, sign, clamp, mean or norm of it",
    )


_STATED = ("declared", "worded")
"""Signs of an intent that words give."""


def _is_ignored(audit: Audit, tensor_index: int) -> bool:
    return ignores_cotangent(audit.subject, audit.base, audit.base_run.roots, tensor_index)


RULE = Rule(__doc__, runtime=_run, of_optional=True, blames="backward", column="eager", of_weights="alone")
