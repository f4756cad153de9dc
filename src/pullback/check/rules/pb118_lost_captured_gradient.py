"""lost-captured-gradient (PB118): a tensor that the forward reads, without being an argument, gets no gradient.

## What it finds
Tensors and modules that the forward reaches through its closure, its globals or a module argument, and that
require grad: each is moved, and if the output moves with it, a backward must give it a gradient.

## Why it hurts
Autograd sees only what is passed to `apply`. The captured parameter is used, and silently never trained.

## Limits
Finds what is named in the forward's own code; a tensor reached through an attribute of some object is not seen.

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

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback.check.cases.repro import call_text
from pullback.check.derivative.agreement import difference
from pullback.check.rules._rule import rule
from pullback.check.trial import Raised, forward, guarded, standard_cotangents
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.state import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    for name, tensor in _captured(audit):
        if not audit.backward_works or not _moves(audit, tensor) or _has_gradient(audit, tensor):
            continue
        yield audit.finding(
            "PB118",
            "error",
            "wrong",
            f"the output depends on {name}, which requires grad and gets no gradient: it is no argument of the call",
            case=audit.base,
            tail=_tail(audit, name),
            hint=f"pass {name} as an argument and return its gradient",
        )


def _tail(audit: Audit, name: str) -> list[str]:
    """Return lines that print how the output moves with a captured tensor, and its gradient."""
    if name.startswith("argument "):
        return [f"out.sum().backward()  # then the .grad of {name} is None"]
    function = "fn.__self__.forward" if audit.subject.kind == "function" else "fn"
    root, _, inner = name.partition(".")
    return [
        "import inspect",
        f"found = inspect.getclosurevars(inspect.unwrap({function}))",
        f'captured = {{**found.globals, **found.nonlocals}}["{root}"]'
        + (f'.get_parameter("{inner}")' if inner else ""),
        audit.outs,
        "torch.autograd.backward(outs, [torch.ones_like(o) for o in outs])",
        "with torch.no_grad():",
        "    captured += 1e-3",
        f"moved = fn({call_text(audit.base)})",
        f"print('before:', out, 'with {name} + 0.001:', moved, 'gradient of {name}:', captured.grad)",
    ]


def _captured(audit: Audit) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) for tensors requiring grad in reach of the forward's code."""
    target = audit.subject.target
    function = target.forward if audit.subject.kind == "function" else target
    reached: dict[str, Any] = {}
    plain = inspect.unwrap(getattr(function, "__func__", function))
    if inspect.isfunction(plain):
        found = inspect.getclosurevars(plain)
        reached.update({**found.globals, **found.nonlocals})
    arguments = audit.base.arguments()[0]
    reached.update({f"argument {k}": a for k, a in enumerate(arguments) if isinstance(a, torch.nn.Module)})
    for name, value in reached.items():
        if isinstance(value, Tensor) and value.requires_grad and value.is_leaf:
            yield name, value
        elif isinstance(value, torch.nn.Module):
            for inner, parameter in value.named_parameters():
                if parameter.requires_grad:
                    yield f"{name}.{inner}", parameter


def _moves(audit: Audit, tensor: Tensor) -> bool:
    """Whether the output changes with the tensor."""
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
    return difference(before, after, rounding=1e-9) is not None


def _has_gradient(audit: Audit, tensor: Tensor) -> bool:
    """Whether `.backward()` reaches the tensor, by the graph or by hand inside the backward."""
    kept, tensor.grad = tensor.grad, None
    try:
        run = forward(audit.subject, audit.base)
        with guarded("backward"):
            torch.autograd.backward(run.roots, standard_cotangents(run.roots))
        return tensor.grad is not None
    except Raised:
        return True
    finally:
        tensor.grad = kept


RULE = rule(__doc__, runtime=_run, blames="forward")
