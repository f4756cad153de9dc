"""unnoticed-change (PB209): an in-place change between forward and backward silently changes the gradient.

## What it finds
After a forward, an ordinary operation changes one input or output in place, and then the backward runs. After such a
change, PyTorch's own operations raise, unless they do not need that tensor. Here the gradient silently changes: the
tensor was kept on `ctx`, or saved as `x.data`, so its version is not checked. The rule does the same with the weights
that the function reaches: those of a module on `ctx` that the backward reads or calls again.

## Why it hurts
`relu_`, `x += y` and reused buffers are common. The backward silently uses the new values in place of the old ones.

## Limits
It is a warning for integers, masks and weights, which seldom change between forward and backward, and for a guessed
input that gets no gradient, since only the guess made it a tensor. Nested lists of tensors are searched; of the weights
only the first ones are changed. The rule runs on the example alone.

## Bad
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.data)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x
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
        return 2 * g * x
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback._torch import tree_leaves
from pullback.check.cases.repro import variables
from pullback.check.derivative.agreement import TensorDifference, difference, gradients
from pullback.check.rules._residuals import altered
from pullback.check.rules._rule import Rule
from pullback.check.trial import ForwardRun, Raised, forward, standard_cotangents, vjp
from pullback.check.weights import captured_tensors
from pullback.dtypes import has_reals, is_opaque
from pullback.report.model import Finding, Severity

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_WEIGHTS = 3
"""Weights that are changed, one at a time."""


def _run(audit: Audit) -> Iterator[Finding]:
    if not audit.backward_works:
        return
    expected, second = (gradients(audit.subject, audit.base) for _ in range(2))
    if difference(expected, second, rounding=0.0):
        return  # determinism is another property
    tensors = enumerate(_tensors(audit.base_run)) if audit.subject.kind == "function" else ()
    for position, t in sorted(tensors, key=lambda item: not has_reals(item[1])):  # the worse finding first
        if id(t) in audit.base.shared_ids:
            continue  # a weight
        where = _after_change(audit, position, expected)
        if where is None:
            continue
        name, expression = _named(audit, position)
        yield _finding(
            audit,
            "error" if has_reals(t) and not _is_our_idea(audit, position, expected) else "warning",
            name,
            where,
            f"{expression}.copy_({_changed(t, expression)})",
            "save the tensor itself by ctx.save_for_backward: then PyTorch checks its version",
        )
        return
    yield from _of_weights(audit, expected)


def _of_weights(audit: Audit, expected: list[Tensor | None]) -> Iterator[Finding]:
    """Yield the warning about a weight that the backward reads as it is by then."""
    held = captured_tensors(audit.subject, audit.base)
    for name, weight in [(n, h) for n, h in held.items() if h.asks and h.tensor.numel()][:_WEIGHTS]:
        where = _after_step(audit, weight.tensor, expected)
        if where is None:
            continue
        yield _finding(
            audit,
            "warning",
            f"{name}, as by a step of an optimiser",
            where,
            f"{weight.text}.mul_(-3)",
            "give the weight to apply and save it by ctx.save_for_backward: then PyTorch checks its version",
        )
        return


def _finding(
    audit: Audit, severity: Severity, changed: str, where: TensorDifference, change: str, hint: str
) -> Finding:
    return audit.finding(
        "PB209",
        severity,
        "wrong",
        f"after an in-place change of {changed}, which raises nothing, "
        f"the gradient of {audit.names[where.tensor_index]} changes: {where}",
        case=audit.base,
        tail=[
            audit.outs,
            "g = [torch.ones_like(o) for o in outs]",
            "print(torch.autograd.grad(outs, inputs, g, retain_graph=True, allow_unused=True))",
            "with torch.no_grad():",
            f"    {change}",
            "print('after the change:', torch.autograd.grad(outs, inputs, g, allow_unused=True))",
        ],
        hint=hint,
    )


def _after_step(audit: Audit, weight: Tensor, expected: list[Tensor | None]) -> TensorDifference | None:
    """Return where the gradient is another one after a weight was changed; `None` if that is refused."""
    run = forward(audit.subject, audit.base)
    before = weight.detach().clone()
    try:
        with torch.no_grad():
            weight.mul_(-3)
        return difference(expected, vjp(run, standard_cotangents(run.roots, run.differentiable)))
    except (Raised, RuntimeError):
        return None
    finally:
        with torch.no_grad():
            weight.copy_(before)


def _is_our_idea(audit: Audit, position: int, gradients: list[Tensor | None]) -> bool:
    """Whether it was guessed that an input is a tensor, and the backward gives it no gradient."""
    given = _given(audit)
    if not audit.guessed or position >= len(given) or given[position] not in audit.base.wrt:
        return False
    return gradients[audit.base.wrt.index(given[position])] is None


def _given(audit: Audit) -> list[int]:
    """Return the positions of the tensors among the arguments of the example."""
    case = audit.base
    return [p for p in case.all_tensors if case.paths[p][0] == 0]


def _tensors(run: ForwardRun) -> list[Tensor]:
    """Return every tensor that went in by position, then every one that came out."""
    return [*(t for t in tree_leaves(run.arguments)[0] if isinstance(t, Tensor)), *run.outputs]


def _changed(t: Tensor, expression: str) -> str:
    """Return an expression for the new value of a tensor."""
    if has_reals(t):
        return f"-3 * {expression}"
    if is_opaque(t):
        return f"torch.zeros_like({expression})"
    return f"~{expression}" if t.dtype == torch.bool else f"{expression}.max() + {expression}.min() - {expression}"


def _named(audit: Audit, position: int) -> tuple[str, str]:
    """Return the name of one of these tensors, and an expression for it in a reproduction."""
    given = _given(audit)
    if position < len(given):
        return audit.base.names[given[position]], variables(audit.base)[given[position]]
    output = position - len(given)
    tensors = "[o for o in torch.utils._pytree.tree_leaves(out) if isinstance(o, torch.Tensor)]"
    return f"output {output}", f"{tensors}[{output}]"


def _after_change(audit: Audit, position: int, expected: list[Tensor | None]) -> TensorDifference | None:
    """Return where the gradient is another one after a tensor was changed in place; `None` if that is refused."""
    run = forward(audit.subject, audit.base)
    t = _tensors(run)[position]
    others = altered(t)
    if not others:
        return None
    try:
        with torch.no_grad():
            t.copy_(others[0])
    except RuntimeError:
        return None  # an expanded tensor, or a view that autograd protects
    try:
        return difference(expected, vjp(run, standard_cotangents(run.roots, run.differentiable)))
    except Raised:
        return None


RULE = Rule(__doc__, runtime=_run, kinds=("function", "callable"), early=1, needs_cpu=True, of_arguments=True)
