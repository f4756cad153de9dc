'''jvp-and-vjp-not-adjoint (PB110): forward mode and reverse mode compute two different derivatives.

## What it finds
<g, jvp(t)> = <vjp(g), t> must hold for every tangent t and cotangent g. The rule tests this identity on the jvp and the
vjp alone, without finite differences. The test is therefore exact, even if the forward is too noisy for a numeric
derivative.

## Why it hurts
`hessian` runs forward over reverse mode: it mixes the two derivatives, and its result is the derivative of neither.

## Limits
The rule does not say which of the two is wrong. PB101 and PB102 do; if either of them reports an error, this rule is
silent.

## Bad
```python
class NoisyCube(torch.autograd.Function):
    """x ** 3, a surrogate gradient."""

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
        return 2 * ctx.saved_tensors[0] ** 2 * tx
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
'''

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.check.case import is_differentiable
from pullback.check.cases.repro import bind, definition, variables
from pullback.check.derivative.agreement import gradients, show
from pullback.check.derivative.forward_mode import has_jvp, jvp_disagreement, tangents
from pullback.check.derivative.sampler import direction_like, random_like
from pullback.check.rules._reproduction import chosen_outs, moved
from pullback.check.rules._rule import Rule
from pullback.check.trial import Raised, as_real
from pullback.report.model import Evidence, Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_ROUNDING = 1e-7


def _run(audit: Audit) -> Iterator[Finding]:
    if audit.intent is not None and audit.intent.sign == "cut":
        return  # `no_grad` stops reverse mode alone
    if not has_jvp(audit.subject) or _skip_inputs(audit):
        return
    for input_index, name in enumerate(audit.names):
        direction = direction_like(audit.base.tensors[input_index], audit.generator)
        cotangents = [random_like(root, audit.generator) for root in audit.base_run.roots]
        try:
            found = tangents(audit.subject, audit.base, {input_index: direction})
        except Raised:
            return
        gradient = gradients(audit.subject, audit.base, cotangents)[input_index]
        forward = _forward_product(audit, found, cotangents)
        reverse_terms = torch.zeros(1) if gradient is None else as_real(gradient) * as_real(direction)
        reverse, size = float(reverse_terms.sum()), float(reverse_terms.abs().sum()) + abs(forward)
        precision = max(_ROUNDING, 1e3 * torch.finfo(direction.dtype).eps)
        cancelled = 64 * torch.finfo(direction.dtype).eps * float(as_real(direction).abs().sum())
        if abs(forward - reverse) > precision * size + cancelled:
            yield audit.finding(
                "PB110",
                "error",
                "wrong",
                f"<g, jvp(t)> is {show(forward)} and <vjp(g), t> is {show(reverse)}, moving {name}",
                case=audit.base,
                evidence=Evidence(expected=reverse, got=forward, where=f"inner product, moving {name}"),
                tail=_tail(audit, input_index, direction, cotangents),
                hint="derive jvp and backward from one formula: each is the transpose of the other",
            )
            return


def _tail(audit: Audit, input_index: int, direction: Tensor, cotangents: list[Tensor]) -> list[str]:
    case = audit.base
    name = variables(case)[case.wrt[input_index]]
    return [
        audit.outs,
        bind("g", cotangents),
        bind("t", direction),
        f"gradient = torch.autograd.grad(outs, inputs, g, materialize_grads=True)[{input_index}]",
        *definition("value_at", case, [audit.floating_outs, f"return {chosen_outs(audit.base_run)}"]),
        "import torch.autograd.forward_ad as fwad",
        "with fwad.dual_level():",
        f"    outs = value_at({moved(case, input_index, f'fwad.make_dual({name}.detach(), t)', '{}.detach()')})",
        "    tangents = [fwad.unpack_dual(o).tangent for o in outs]",
        "forward = sum((a.conj() * b).real.sum().item() for a, b in zip(g, tangents) if b is not None)",
        "print('<g, jvp(t)> is', forward, 'and <vjp(g), t> is', (gradient.conj() * t).real.sum().item())",
    ]


def _skip_inputs(audit: Audit) -> bool:
    """Whether PB101 or PB102 already reports which of the two is wrong."""
    if audit.intent is not None:
        return False
    first = audit.base_result
    if first is not None and first.wrong:
        return True
    found = (jvp_disagreement(audit, input_index) for input_index in range(len(audit.names)))
    return any(disagreement is not None and disagreement.decided for disagreement in found)


def _forward_product(
    audit: Audit, found: list[tuple[torch.Tensor, torch.Tensor | None]], cotangents: list[torch.Tensor]
) -> float:
    floating = [p for p, out in enumerate(audit.base_run.outputs) if is_differentiable(out)]
    indices = [floating.index(p) for p in audit.base_run.differentiable]
    total = 0.0
    for rank, g in zip(indices, cotangents, strict=True):
        tangent = found[rank][1]
        if tangent is not None:
            total += float((as_real(tangent) * as_real(g)).sum())
    return total


RULE = Rule(__doc__, runtime=_run, blames="backward", column="eager")
