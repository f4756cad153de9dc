"""lost-captured-gradient (PB118): a tensor that the forward captures gets no gradient.

## What it finds
Tensors that require grad and that the forward reaches through its closure, its globals, its defaults, its own object if
it is a method, or an argument that is a module, a function or another object. The rule changes each tensor. If the
output changes with it, a backward must give it a gradient. If the gradient comes only from a nested `backward()` that
accumulates into `.grad`, the output must still require grad when no argument does.

## Why it hurts
Autograd sees only the tensors that are passed to `apply`. The captured parameter is used but silently never trained. A
parameter that gets its gradient from a nested backward is not trained in the first layer, whose input requires no grad,
and `torch.autograd.grad` gives it no gradient. If a callable detaches the tensor or uses it under `no_grad`, that may
be on purpose, and it is a warning.

## Limits
Closures, attributes and containers are followed for four steps. Functions among the globals are followed within the
same package.

## Bad
```python
weight = torch.randn(5, dtype=torch.float64, requires_grad=True)

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * weight

    @staticmethod
    def backward(ctx, g):
        return g * weight

def inputs():
    return (torch.randn(3, 5, dtype=torch.float64, requires_grad=True),)
```

## Good
```python
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return (g * weight).sum_to_size(x.shape), (g * x).sum_to_size(weight.shape)
```
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from pullback.check.case import Captured
from pullback.check.cases.repro import call_text
from pullback.check.derivative.agreement import difference, first_of
from pullback.check.purity.cuts import GraphCut, culprits, deliberate_stop, watch_cuts
from pullback.check.rules._rule import Rule
from pullback.check.trial import Raised, forward, guarded, standard_cotangents
from pullback.check.weights import captured_tensors
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    captured = {n: h for n, h in captured_tensors(audit.subject, audit.base).items() if h.tensor.requires_grad}
    if not captured or not audit.backward_works:
        return
    by_backward = _reached(audit, captured)
    lost = [name for name in captured if name not in by_backward and _moves(audit, captured[name])]
    if lost:
        cut = _stop(audit, [captured[name] for name in lost])
        yield audit.finding(
            "PB118",
            "warning" if cut else "error",
            "intended" if cut else "wrong",
            f"the output depends on {first_of(lost)}, which requires grad and gets no gradient: "
            + (f"it leaves the graph by {cut.where}" if cut else "it is not an argument of the call"),
            case=audit.base,
            tail=_tail(audit, lost[0], captured[lost[0]]),
            hint="if that is intended, say so in the docstring"
            if cut
            else f"pass {lost[0]} as an argument and return its gradient",
        )
    if not _asks_alone(audit) and (by_hand := [name for name in by_backward if _moves(audit, captured[name])]):
        yield audit.finding(
            "PB118",
            "error",
            "wrong",
            f"{first_of(by_hand)} gets its gradient from a backward inside of the backward, in .grad: "
            "torch.autograd.grad gives it none, and where no argument requires grad, it is not trained",
            case=audit.base,
            mask=[False] * len(audit.base.wrt),
            tail=["print('requires grad:', [o.requires_grad for o in torch.utils._pytree.tree_leaves(out)])"],
            hint=f"pass {by_hand[0]} as an argument and return its gradient",
        )


def _stop(audit: Audit, lost: list[Captured]) -> GraphCut | None:
    """Return the first of the calls that stop the gradients of all of these on purpose, if such calls do."""
    if audit.subject.kind != "callable":
        return None
    with watch_cuts() as watch:
        forward(audit.subject, audit.base)
    return deliberate_stop([list(culprits(watch.cuts, h.tensor)) for h in lost])


def _tail(audit: Audit, name: str, captured: Captured) -> list[str]:
    """Return lines that print how the output moves with a captured tensor, and its gradient."""
    return [
        *(["import inspect"] if "inspect." in captured.text else []),
        f"captured = {captured.text}",
        audit.outs,
        "torch.autograd.backward(outs, [torch.ones_like(o) for o in outs])",
        "with torch.no_grad():",
        "    captured += 1e-3",
        f"moved = fn({call_text(audit.base)})",
        f"print('before:', out, 'with {name} + 0.001:', moved, 'gradient of {name}:', captured.grad)",
    ]


def _moves(audit: Audit, captured: Captured) -> bool:
    """Whether the output changes with the tensor."""
    tensor = captured.tensor
    kept = tensor.detach().clone()
    try:
        with torch.no_grad():
            tensor += 1e-3 * (1 + tensor.abs())
        moved = forward(audit.subject, audit.base)
    except Raised:
        return False
    finally:
        with torch.no_grad():
            tensor.copy_(kept)
    before = [audit.base_run.outputs[p].detach() for p in audit.base_run.differentiable]
    after = [moved.outputs[p].detach() for p in audit.base_run.differentiable]
    return len(before) == len(after) and difference(before, after, rounding=1e-9) is not None


def _reached(audit: Audit, captured: Mapping[str, Captured]) -> list[str]:
    """Return the names of tensors that get a gradient by `.backward()`, from the graph or from code in the backward."""
    kept = {name: h.tensor.grad for name, h in captured.items()}
    for h in captured.values():
        h.tensor.grad = None
    try:
        run = forward(audit.subject, audit.base)
        with guarded("backward"):
            torch.autograd.backward(run.roots, standard_cotangents(run.roots))
        return [name for name, h in captured.items() if h.tensor.grad is not None]
    except Raised:
        return list(captured)
    finally:
        for name, h in captured.items():
            h.tensor.grad = kept[name]


def _asks_alone(audit: Audit) -> bool:
    """Whether some output requires grad though no argument does."""
    try:
        return bool(forward(audit.subject, audit.base, mask=[False] * len(audit.base.wrt)).roots)
    except Raised:
        return True


RULE = Rule(__doc__, runtime=_run, blames="forward", column="eager")
