"""differs-from-reference (PB121): the value or the gradient is not that of the reference.

## What it finds
With `pullback.check(fn, *inputs, reference=formula)`, every output and every gradient of the example and of its
variants is compared with that of a formula in plain PyTorch, which takes the same arguments. It finds what no
comparison of the backward with the forward can: both have the same error. The error bars are the range of the formula
over inputs perturbed by one rounding error, in float64 or in the precision in which the function works.

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

from pullback.check.case import Case
from pullback.check.cases.repro import bind, source_of
from pullback.check.derivative.agreement import show, subscript
from pullback.check.derivative.band import Band, Precision, bands
from pullback.check.derivative.first_order import FirstOrder
from pullback.check.derivative.oracle import working_epsilon
from pullback.check.rules._rule import Rule
from pullback.check.trial import ForwardRun, Raised, as_real, forward, vjp
from pullback.report.model import Evidence, Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_NARROW = (torch.bfloat16, torch.float16, torch.float32)
_HINT = (
    "the function and the reference disagree: one of them is wrong. If they are meant to differ, do not pass reference="
)


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
        if found and not _is_isolated(audit, result):
            yield found[0]
            return


def _is_isolated(audit: Audit, result: FirstOrder) -> bool:
    """Whether a variant differs at these points alone: at ties, of which any may win."""
    case = result.case
    if not case.is_variant or any(t.is_complex() for t in case.tensors):
        return False
    noise = torch.Generator().manual_seed(0)
    moved = case.map_inputs(
        lambda t: t + 1e-6 * torch.randn(t.shape, dtype=t.dtype, generator=noise), f"{case.label}, moved"
    )
    try:
        beside = audit.compare(moved)
        return beside is not None and beside.error is None and not list(_differences(audit, beside))
    except Raised:
        return False


def _differences(audit: Audit, result: FirstOrder) -> Iterator[Finding]:
    """The findings on one case, at most one for each output and gradient.

    Raises:
        Raised: if the reference does.
    """
    outputs, positions = result.run.outputs, result.run.differentiable

    def right_run(case: Case) -> ForwardRun:
        return forward(audit.subject, case, call=audit.options.reference)

    def reference(case: Case) -> list[Tensor | None]:
        run = right_run(case)
        run.differentiable = [p for p in positions if run.outputs[p].requires_grad]
        given = dict(zip(positions, result.cotangents, strict=True))
        gradients = vjp(run, [given[p].to(run.outputs[p].dtype) for p in run.differentiable])
        return [*(out.detach() for out in run.outputs), *gradients]

    shapes, right_shapes = ([list(out.shape) for out in found] for found in (outputs, right_run(result.case).outputs))
    if shapes != right_shapes:
        what = f"its outputs have the shapes {shapes}, those of the reference {right_shapes}{_with(result.case)}"
        yield audit.finding("PB121", "error", "wrong", what, case=result.case)
        return
    got = [*(out.detach() for out in outputs), *result.gradients]
    scales = _scales(audit.base_result)
    right = bands(reference, result.case, _precision(got), audit.generator, result.case.extreme, scales)
    for k, (band, value) in enumerate(zip(right, got, strict=True)):
        if k < len(outputs):
            name = f"output {k}"
            lines = ["out_leaves = torch.utils._pytree.tree_leaves(out)", f"got = out_leaves[{k}]"]
        else:
            k -= len(outputs)
            if value is None and not audit.base.is_asked and any(g is not None for g in result.gradients):
                continue  # no differentiable input, unless PB107 says so
            name = f"the gradient of {audit.names[k]}"
            lines = [audit.outs, bind("g", result.cotangents)]
            lines.append(f"got = torch.autograd.grad(outs, inputs, g, materialize_grads=True)[{k}]")
        yield from _difference(audit, result, band, value, name, lines)


def _difference(
    audit: Audit, result: FirstOrder, band: Band, value: Tensor | None, name: str, lines: Sequence[str]
) -> Iterator[Finding]:
    """The finding about one tensor, if it differs."""
    if value is None or band.shape is None:
        if value is None and band.shape is None:
            return
        zeros = torch.zeros_like(band.expected if value is None else as_real(value))
        flat = zeros if value is None else as_real(value)
        band = band if value is None else Band(tuple(value.shape), value.dtype, zeros, zeros, zeros)
    else:
        flat = as_real(value)
    wrong = band.outside(flat)
    if not bool(wrong.any()):
        return
    at, index = band.worst(flat, wrong)
    got, expected, bar = float(flat[at]), float(band.expected[at]), float(band.high[at] - band.low[at]) / 2
    part = "" if flat.numel() == torch.Size(band.shape or ()).numel() else (".real", ".imag")[at % 2]
    yield audit.finding(
        "PB121",
        "error",
        "wrong",
        f"{name}{subscript(index)} is {show(got)}, that of the reference {show(expected)}{_with(result.case)}",
        case=result.case,
        evidence=Evidence(expected, got, bar, index, name, "float64", int(wrong.sum()), wrong.numel()),
        tail=[*lines, f"print('got', got{subscript(index)}.item(){part}, 'and the reference', {source_of(expected)})"],
        hint=_HINT,
    )


def _scales(base: FirstOrder | None) -> list[float]:
    """The largest element of each output and gradient of the example: those of a variant may all cancel to 0."""
    found = [] if base is None else [*base.run.outputs, *base.gradients]
    return [float(as_real(t).abs().max()) if t is not None and t.numel() else 0.0 for t in found]


def _with(case: Case) -> str:
    return f" (with {case.label})" if case.is_variant else ""


def _precision(got: Sequence[Tensor | None]) -> Precision:
    """The precision in which a function works, from the digits of what it returns."""
    floating = [t for t in got if t is not None and (t.is_floating_point() or t.is_complex())]
    epsilon = max((max(torch.finfo(t.dtype).eps, working_epsilon(as_real(t))) for t in floating), default=0.0)
    narrow = next((dtype for dtype in _NARROW if torch.finfo(dtype).eps <= epsilon), torch.float64)
    return Precision.of(narrow, narrow)


RULE = Rule(__doc__, runtime=_run, blames="forward", column="eager", varies=True)
