"""func-jvp-differs (PB407): forward mode is silently zero, differs between its two interfaces, or raises.

## What it finds
The function runs under dual numbers (`torch.autograd.forward_ad`) and under `torch.func.jvp`, with a tangent for every
input and with one for each input alone.

- An error: the two interfaces disagree; or the gradient of the tangent (reverse over forward) is not its numeric
  derivative. The latter is a warning if no custom function runs, as PyTorch's own layer and batch norm have that fault.
- A warning: the op defines no jvp, and its tangent is zero or missing although its gradient is not. Every
  `torch.library` custom op behaves this way, which is a limitation of PyTorch. Any exception except the next one is a
  warning too.
- An info: a Function without `jvp`, for which PyTorch raises a clear error.

## Why it hurts
`jacfwd`, `hessian` and `linearize` use forward mode. A zero tangent silently makes a Hessian-vector product zero, and a
`jvp` that computes with detached tensors silently loses the second derivative.

## Limits
PB102 and PB110 test whether a `jvp` is correct to first order. If the numeric derivative of a tangent is too noisy, the
verdict on its gradient is `inconclusive`.

## Bad
```python
@torch.library.custom_op("pullback_pages::cube", mutates_args=())
def example(x: torch.Tensor) -> torch.Tensor:
    return x**3


def setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def backward(ctx, g):
    (x,) = ctx.saved_tensors
    return 3 * x * x * g


example.register_autograd(backward, setup_context=setup_context)
```

## Good
```python
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g

    @staticmethod
    def jvp(ctx, tx):
        (x,) = ctx.saved_tensors
        return 3 * x * x * tx
```
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.autograd.forward_ad as fwad
from torch import Tensor

from pullback.check.cases.repro import bind
from pullback.check.contexts.compare import DifferenceText, RefusalText, differing, preamble, refusing
from pullback.check.contexts.eager import EagerReference, base_setting, parts
from pullback.check.derivative.agreement import show
from pullback.check.derivative.forward_mode import NEGLIGIBLE
from pullback.check.derivative.oracle import SIGNIFICANT, Estimate, confirmed
from pullback.check.derivative.sampler import direction_like
from pullback.check.rules._rule import Rule
from pullback.check.trial import Raised, as_real, guarded, reseed
from pullback.report.model import Evidence, Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

Tangents = Sequence[Tensor | None]

_SEED = 5
_SIGNIFICANT = 1e-6
"""Of the sum of the magnitudes: a product of gradient and tangent below it may be zero."""
_GRAPH_SEED = 7
_AGREEMENT = 1e-6
_SHARP = 1e-4
"""Relative error bar above which the derivative of a tangent is estimated with finer steps."""
_BLURRED = 0.1
"""Relative error bar above which it is undecided."""


def _run(audit: Audit) -> Iterator[Finding]:
    setting = base_setting(audit)
    if setting is None:
        return
    generator = torch.Generator().manual_seed(_SEED)
    tangents = [direction_like(x, generator) for x in setting.inputs]
    code = [*preamble(setting), bind("tangents", tuple(tangents))]
    audit.events.beat()
    try:
        dual = _dual(setting, tangents)
        for i, tangent in enumerate(tangents if len(tangents) > 1 else ()):
            _dual(setting, [tangent if o == i else None for o in range(len(tangents))])
    except Raised as error:
        yield refusing(audit, "PB407", setting, error, RefusalText(_DUAL, [*code, *_DUAL_CODE]))
        return
    if not _is_zero(dual):
        yield from _functional_differs(audit, setting, tangents, dual, code)
        yield from _second_order(audit, setting, tangents, code)
    elif not _defines_jvp(audit) and _moves(setting, tangents):
        yield _zero(audit, setting, [*code, *_DUAL_CODE])


def _functional_differs(
    audit: Audit, setting: EagerReference, tangents: Sequence[Tensor], dual: Tangents, code: Sequence[str]
) -> Iterator[Finding]:
    code = [*code, *_DUAL_CODE, "print(torch.func.jvp(call, tuple(points), tangents)[1])"]
    try:
        different = parts(dual, _functional(setting, tangents))
    except Raised as error:
        yield refusing(audit, "PB407", setting, error, RefusalText(_FUNC, code))
        return
    if different is not None:
        labels = [f"tangent of output {i}" for i in range(len(dual))]
        text = DifferenceText(_FUNC, code, _HINT, labels=labels, yardstick="by dual numbers")
        yield differing(audit, "PB407", setting, different, text)


def _second_order(
    audit: Audit, setting: EagerReference, tangents: Sequence[Tensor], code: Sequence[str]
) -> Iterator[Finding]:
    audit.events.beat()
    try:
        mismatch = _tangent_graph_mismatch(setting, tangents)
    except Raised:
        return  # no second derivative, with a clear error
    if mismatch is None:
        return
    if not mismatch.decided:
        why = "the tangent is too noisy, or too steep near the inputs tried, to tell whether its own gradient is right"
        yield audit.finding("PB407", "info", "inconclusive", why, case=setting.case)
        return
    expected, got = show(mismatch.expected), show(mismatch.got)
    what = f"the gradient of a tangent (reverse over forward) is {got} along a direction, its derivative {expected}"
    whose = ": PyTorch's own fault, since no custom function runs" if audit.is_native else ""
    yield audit.finding(
        "PB407",
        "warning" if audit.is_native else "error",
        "wrong",
        what + whose,
        case=setting.case,
        evidence=Evidence(
            expected=mismatch.expected,
            got=mismatch.got,
            error_bar=mismatch.bar,
            where="derivative of a tangent along a random direction",
        ),
        tail=[*code, bind("directions", mismatch.directions), *_SECOND_CODE],
        hint="take it by double backward"
        if audit.is_native
        else "jvp must compute with ctx.saved_tensors themselves: neither detached, nor computed in the forward",
    )


@dataclass(frozen=True, slots=True)
class _Mismatch:
    """The derivative of <g, tangent> along a direction: numeric, with its error bar, and by its graph.

    `decided` is false if the error bar is too large.
    """

    expected: float
    got: float
    bar: float
    directions: Sequence[Tensor]
    decided: bool = True


def _tangent_graph_mismatch(setting: EagerReference, tangents: Sequence[Tensor]) -> _Mismatch | None:
    """Compare the gradient of a tangent with the numeric derivative of that tangent.

    The numeric derivative is of forward mode alone, so the result does not depend on the backward.

    Raises:
        Raised: if forward mode, or the backward through it, raises.
    """
    # p(x) = <g, J(x) t> for fixed g and t has the gradient Σ gₖ ∇²yₖ t. Along v that is Σ gₖ <v, ∇²yₖ t>, to which the
    # numeric derivative of p along v is compared.
    generator = torch.Generator().manual_seed(_GRAPH_SEED)
    directions = [direction_like(x, generator) for x in setting.inputs]
    leaves = setting.leaves()
    product = _product(setting, leaves, tangents)
    gradients: Sequence[Tensor | None] = [None] * len(leaves)
    if product.requires_grad:
        with guarded("the backward through a tangent"):
            gradients = torch.autograd.grad(product, leaves, allow_unused=True)
    terms = [as_real(g) * as_real(v) for g, v in zip(gradients, directions, strict=True) if g is not None]
    got = float(sum(t.sum() for t in terms))
    size = float(sum(t.abs().sum() for t in terms))

    def curve(t: float) -> Tensor:
        moved = [(x + t * v).to(x.dtype) for x, v in zip(setting.inputs, directions, strict=True)]
        return as_real(_product(setting, moved, tangents)).reshape(1)

    def blurred(estimate: Estimate, part: float) -> bool:
        resolved = part * (size + abs(float(estimate.low))) + NEGLIGIBLE * float(estimate.magnitude)
        zero = size == 0 and bool(estimate.flat)
        return SIGNIFICANT * float(estimate.bar) > resolved and not zero

    def disagrees(estimate: Estimate) -> bool:
        return mismatch(estimate) is not None or blurred(estimate, _SHARP)

    def mismatch(estimate: Estimate) -> _Mismatch | None:
        expected, bar = float(estimate.low), float(estimate.bar)
        if bool(estimate.kink):
            return None
        if bool(estimate.valid) and abs(got - expected) > SIGNIFICANT * bar + _AGREEMENT * (size + abs(expected)):
            return _Mismatch(expected, got, bar, directions)
        undecided = blurred(estimate, _BLURRED) or not bool(estimate.valid)
        return _Mismatch(expected, got, bar, directions, decided=False) if undecided else None

    return mismatch(confirmed(curve, disagrees, moved=setting.inputs))


def _product(setting: EagerReference, inputs: Sequence[Tensor], tangents: Sequence[Tensor]) -> Tensor:
    """Return <g, tangent of the outputs> at `inputs`."""
    reseed()
    with guarded("forward mode"), fwad.dual_level():
        duals = [fwad.make_dual(x, t) for x, t in zip(inputs, tangents, strict=True)]
        total = torch.zeros((), dtype=torch.float64)
        for g, out in zip(setting.cotangents, setting.function()(*duals), strict=True):
            tangent = fwad.unpack_dual(out).tangent
            if tangent is not None:
                total = total + (g.conj() * tangent).real.sum()
        return total


def _dual(setting: EagerReference, tangents: Tangents) -> list[Tensor | None]:
    """Return the tangent of each output by dual numbers; inputs whose tangent is `None` are ordinary."""
    reseed()
    with guarded(_DUAL), fwad.dual_level():
        duals = [
            x.clone() if t is None else fwad.make_dual(x.clone(), t)
            for x, t in zip(setting.inputs, tangents, strict=True)
        ]
        unpacked = [fwad.unpack_dual(out) for out in setting.function()(*duals)]
        return [None if u.tangent is None else u.tangent.clone() for u in unpacked]


def _functional(setting: EagerReference, tangents: Sequence[Tensor]) -> list[Tensor | None]:
    reseed()
    with guarded(_FUNC):
        return list(torch.func.jvp(setting.function(), setting.inputs, tuple(tangents))[1])


def _is_zero(tangents: Tangents) -> bool:
    return all(t is None or not bool(t.any()) for t in tangents)


def _moves(setting: EagerReference, tangents: Sequence[Tensor]) -> bool:
    """Whether the outputs move along the tangents, by the eager gradient."""
    terms = torch.cat(
        [as_real(g) * as_real(t) for g, t in zip(setting.gradients, tangents, strict=True) if g is not None]
        or [torch.zeros(1)]
    )
    return abs(float(terms.sum())) > _SIGNIFICANT * float(terms.abs().sum())


def _defines_jvp(audit: Audit) -> bool:
    subject = audit.subject
    return subject.kind == "function" and subject.target.jvp is not torch.autograd.Function.jvp


def _zero(audit: Audit, setting: EagerReference, code: Sequence[str]) -> Finding:
    whose = (
        "PyTorch drops the derivative of every custom op in forward mode"
        if audit.subject.kind == "op"
        else "a custom op in it, or a detach, drops the derivative"
    )
    return audit.finding(
        "PB407",
        "warning",
        "wrong",
        f"{_DUAL} and torch.func.jvp give a zero tangent where the gradient is not zero: {whose}",
        case=setting.case,
        tail=code,
        hint="use reverse mode: jacrev by is_grads_batched, Hessians by double backward",
    )


_DUAL, _FUNC = "forward_ad", "torch.func.jvp"
_DUAL_CODE = (
    "import torch.autograd.forward_ad as fwad",
    "with fwad.dual_level():",
    "    outs = call(*[fwad.make_dual(x, t) for x, t in zip(points, tangents)])",
    "    print([fwad.unpack_dual(out).tangent for out in outs])",
)
_SECOND_CODE = (
    "import torch.autograd.forward_ad as fwad",
    "def value_at(xs):",
    "    with fwad.dual_level():",
    "        outs = call(*[fwad.make_dual(x, t) for x, t in zip(xs, tangents)])",
    "        moves = [(g, fwad.unpack_dual(o).tangent) for g, o in zip(cotangents, outs)]",
    "        return sum((g.conj() * t).real.sum() for g, t in moves if t is not None)",
    "def dot(a, b):",
    "    return sum((x.conj() * y).real.sum().item() for x, y in zip(a, b))",
    "tangent = value_at(inputs)",
    "got = torch.autograd.grad(tangent, inputs, materialize_grads=True) if tangent.requires_grad else ()",
    "above = value_at([x.detach() + 1e-4 * v for x, v in zip(inputs, directions)]).item()",
    "below = value_at([x.detach() - 1e-4 * v for x, v in zip(inputs, directions)]).item()",
    "print('the gradient of the tangent gives', dot(got, directions), 'and differences', (above - below) / 2e-4)",
)
_HINT = "the jvp branches on what it is given: it must not"

RULE = Rule(__doc__, runtime=_run, blames="jvp", column="func.jvp", transforms=True, context="jvp")
