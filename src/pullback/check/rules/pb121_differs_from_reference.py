"""differs-from-reference (PB121): the value or the gradient is not that of the reference.

## What it finds
With `pullback.check(fn, *inputs, reference=formula)`, every output and every gradient of the example and of its
variants is compared with that of a formula in plain PyTorch, which takes the same arguments. It finds what no
comparison of the backward with the forward can: both are wrong alike. The error bars are the range of the formula over
inputs that differ by a rounding, in float64 or in the precision in which the function works.

## Why it hurts
A kernel that drops a term in forward and backward alike passes every test of its gradient, and computes something else.

## Limits
The rule runs only where a reference is given. Where that is ill-conditioned or not finite, nothing is compared.
`pullback judge` also looks for results that are not computed at all.

## Bad
```python
class Cubic(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        return g * 3 * ctx.saved_tensors[0] ** 2


def reference(x):
    return x**3 + 0.01 * x
```

## Good
```python
class Cubic(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (x * x + 0.01)

    @staticmethod
    def backward(ctx, g):
        return g * (3 * ctx.saved_tensors[0] ** 2 + 0.01)


def reference(x):
    return x**3 + 0.01 * x
```
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.check.case import Case, copy_tensor
from pullback.check.cases.repro import bind
from pullback.check.derivative.agreement import show, subscript
from pullback.check.derivative.band import Band, Precision, bands
from pullback.check.derivative.first_order import FirstOrder
from pullback.check.derivative.oracle import working_epsilon
from pullback.check.rules._rule import Rule
from pullback.check.trial import Raised, as_real, forward, vjp
from pullback.report.model import Evidence, Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_NARROW = (torch.bfloat16, torch.float16, torch.float32)


def _run(audit: Audit) -> Iterator[Finding]:
    if audit.options.reference is None:
        return
    for result in audit.results():
        if result.case.doubtful or result.error is not None:
            continue
        try:
            found = list(_differences(audit, result))
        except Raised as error:
            if not result.case.is_variant:
                why = f"could not be decided: the reference raises: {error}"
                yield audit.finding("PB121", "info", "inconclusive", why, case=result.case)
            continue
        yield from found[:1]
        if found:
            return


def _differences(audit: Audit, result: FirstOrder) -> Iterator[Finding]:
    """The findings on one case, at most one for each output and gradient.

    Raises:
        Raised: if the reference does.
    """
    positions = result.run.differentiable

    def reference(case: Case) -> list[Tensor | None]:
        run = forward(audit.subject, case, call=audit.options.reference)
        asked = [run.outputs[p] for p in positions if p < len(run.outputs) and run.outputs[p].requires_grad]
        values: list[Tensor | None] = [out.detach() for out in run.outputs]
        if len(asked) != len(positions) or any(
            a.shape != g.shape for a, g in zip(asked, result.cotangents, strict=True)
        ):
            return values
        run.differentiable = list(positions)
        return values + vjp(run, [copy_tensor(g).to(a.dtype) for g, a in zip(result.cotangents, asked, strict=True)])

    got = [*(out.detach() for out in result.run.outputs), *result.gradients]
    right = bands(reference, result.case, _precision(got), audit.generator, result.case.extreme)
    count = len(result.run.outputs)
    names = [f"output {k}" for k in range(count)] + [f"the gradient of {name}" for name in audit.names]
    if len(right) != len(got):
        what = f"it returns {count} tensors, {len(positions)} of them differentiable; the reference does not"
        yield audit.finding("PB121", "error", "wrong", what, case=result.case)
        return
    lines = [audit.outs, bind("g", result.cotangents)]
    for k, (band, value, name) in enumerate(zip(right, got, names, strict=True)):
        text = (
            f"out_leaves[{k}]"
            if k < count
            else f"torch.autograd.grad(outs, inputs, g, materialize_grads=True)[{k - count}]"
        )
        leaves = ["out_leaves = torch.utils._pytree.tree_leaves(out)"] if k < count else lines
        yield from _difference(audit, result, band, value, name, [*leaves, f"got = {text}"])


def _difference(
    audit: Audit, result: FirstOrder, band: Band, value: Tensor | None, name: str, lines: Sequence[str]
) -> Iterator[Finding]:
    """The finding about one tensor, if it differs."""
    if band.shape is None:
        return
    if value is not None and tuple(value.shape) != band.shape:
        what = f"{name} has shape {list(value.shape)}, that of the reference {list(band.shape)}"
        yield audit.finding("PB121", "error", "wrong", what, case=result.case)
        return
    flat = torch.zeros_like(band.expected) if value is None else as_real(value)
    wrong = band.outside(flat)
    if not bool(wrong.any()):
        return
    excess = torch.where(wrong, (flat - band.expected).abs().nan_to_num(nan=torch.inf), -1.0)
    at = int(excess.argmax())
    parts = 2 if band.expected.numel() > torch.Size(band.shape).numel() else 1
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at // parts), band.shape)) if band.shape else ()
    got, expected = float(flat[at]), float(band.expected[at])
    part = ("", ".real" if at % 2 == 0 else ".imag")[parts - 1]
    yield audit.finding(
        "PB121",
        "error",
        "wrong",
        f"{name}{subscript(index)} is {show(got)}, that of the reference {show(expected)}",
        case=result.case,
        evidence=Evidence(
            expected,
            got,
            float(band.high[at] - band.low[at]) / 2,
            index,
            name,
            "float64",
            int(wrong.sum()),
            wrong.numel(),
        ),
        tail=[*lines, f"print('got', got{subscript(index)}.item(){part}, 'and the reference', {expected!r})"],
        hint="derive forward and backward from one formula; a formula that is meant to differ is no reference",
    )


def _precision(got: Sequence[Tensor | None]) -> Precision:
    """The precision in which a function works, from the digits of what it returns."""
    floating = [t for t in got if t is not None and (t.is_floating_point() or t.is_complex())]
    epsilon = max((max(torch.finfo(t.dtype).eps, working_epsilon(as_real(t))) for t in floating), default=0.0)
    narrow = next((dtype for dtype in _NARROW if torch.finfo(dtype).eps <= epsilon), torch.float64)
    return Precision.of(narrow, narrow)


RULE = Rule(__doc__, runtime=_run, blames="forward", column="eager", varies=True)
