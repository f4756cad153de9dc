"""wrong-jvp (PB102): the forward-mode derivative is not the derivative of the forward.

## What it finds
The tangent that the `jvp` method (or forward mode through a callable) returns for a random input tangent is compared
with the numeric derivative of the forward, as in PB101. The rule catches a jvp that ignores its tangent, forgets an
input or returns a Jacobian.

## Why it hurts
`jacfwd`, `hessian`, Hessian-vector products and everything else that uses forward-over-reverse is wrong, while training
looks correct.

## Limits
Functions without a `jvp` raise in forward mode, which PB407 covers. The rule runs on the example alone, and reports
`inconclusive` if the forward is too noisy there.

## Bad
```python
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return g * 3 * ctx.saved_tensors[0] ** 2

    @staticmethod
    def jvp(ctx, tx):
        return 3 * ctx.saved_tensors[0] * tx
```

## Good
```python
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return g * 3 * ctx.saved_tensors[0] ** 2

    @staticmethod
    def jvp(ctx, tx):
        return 3 * ctx.saved_tensors[0] ** 2 * tx
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from pullback.check.case import is_differentiable
from pullback.check.cases.repro import bind, definition, variables
from pullback.check.derivative.agreement import show, subscript
from pullback.check.derivative.forward_mode import JvpDisagreement, jvp_disagreement
from pullback.check.rules._reproduction import moved
from pullback.check.rules._rule import Rule
from pullback.report.model import Evidence, Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


_WIDE = (torch.float64, torch.complex128)
_STEP = {True: 1e-4, False: 1e-2}


def _run(audit: Audit) -> Iterator[Finding]:
    if audit.intent is not None:
        return
    undecided = 0
    for input_index, name in enumerate(audit.names):
        found = jvp_disagreement(audit, input_index)
        if found is None or not found.decided:
            undecided += found is not None
            continue
        where = f"the tangent of output {found.output} at {list(found.index)}, moving {name},"
        yield audit.finding(
            "PB102",
            "error",
            "wrong",
            f"{where} is {show(found.got)}; the derivative of the forward is {show(found.expected)}",
            case=audit.base,
            evidence=Evidence(
                found.expected,
                found.got,
                found.bar,
                found.index,
                f"tangent of output {found.output}",
                "float64",
                1,
                1,
            ),
            tail=_tail(audit, found),
            hint="derive the jvp again: it must be linear in the tangents and use every one of them",
        )
        return
    if undecided == len(audit.names):
        why = "the forward is too noisy, or too steep near the inputs tried, to tell whether the tangent is right"
        hint = "give inputs of a wider dtype, or larger and away from singular points"
        yield audit.finding("PB102", "info", "inconclusive", why, case=audit.base, hint=hint)


def _tail(audit: Audit, found: JvpDisagreement) -> list[str]:
    case = audit.base
    which = found.input_index
    name = variables(case)[case.wrt[which]]
    step = f"{_STEP[case.tensors[which].dtype in _WIDE]} * tangent"
    out = [out for out in audit.base_run.outputs if is_differentiable(out)][found.output]
    reals = "torch.view_as_real({})" if out.is_complex() else "{}"
    at = subscript(found.index)
    points = [moved(case, which, f"{name}.detach() {sign} {step}", "{}.detach()") for sign in "+-"]
    return [
        bind("tangent", found.direction),
        *definition("value_at", case, [audit.floating_outs, f"return outs[{found.output}].resolve_conj()"]),
        "import torch.autograd.forward_ad as fwad",
        "with fwad.dual_level():",
        f"    dual = value_at({moved(case, which, f'fwad.make_dual({name}.detach(), tangent)', '{}.detach()')})",
        "    got = fwad.unpack_dual(dual).tangent",
        "    got = torch.zeros_like(dual) if got is None else got",
        f"above = value_at({points[0]})",
        f"below = value_at({points[1]})",
        f"expected = (above - below) / {2 * _STEP[audit.base.tensors[found.input_index].dtype in _WIDE]}",
        f"print('tangent', {reals.format('got')}{at}.item(), "
        f"'and finite difference', {reals.format('expected')}{at}.item())",
    ]


RULE = Rule(__doc__, runtime=_run, blames="jvp", column="eager")
