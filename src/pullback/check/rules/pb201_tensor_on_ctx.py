"""tensor-on-ctx (PB201): a tensor is kept as an attribute of ctx instead of by save_for_backward.

## What it finds
After a forward: attributes of `ctx` that hold tensors, also in lists, tuples and dicts, and whether each is an
input, an output or something in between.

## Why it hurts
What `save_for_backward` does is lost: an in-place change between forward and backward goes unnoticed and the
gradient is silently wrong; saved-tensor hooks (offloading, checkpointing, compression) do not see it; it is not freed
after the backward. An *output* on its own `ctx` is a reference cycle besides: memory is held until the garbage
collector runs.

## Limits
A warning for floating tensors, an info for whole numbers and masks. Tensors inside of other objects are not looked
for. What is put on `ctx` in the backward is not seen.

## Bad
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.x
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
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback._torch import tree_leaves
from pullback.check.rules._kept import origin
from pullback.check.rules._rule import rule
from pullback.check.trial import Run, forward
from pullback.dtypes import has_derivative
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.state import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    run = forward(audit.subject, audit.base)
    ctx = _context(run, audit.subject.target)
    held = {} if ctx is None else _held(ctx)
    for floating in (True, False):
        told = [f"ctx.{name} ({origin(t, run)})" for name, t in held.items() if has_derivative(t) == floating]
        if told:
            yield audit.finding(
                "PB201",
                "warning" if floating else "info",
                "wrong",
                f"the forward keeps {' and '.join(told)} outside of save_for_backward",
                case=audit.base,
                tail=[audit.outs, "print('kept on ctx:', vars(outs[0].grad_fn))"],
                hint="pass tensors to ctx.save_for_backward and read them from ctx.saved_tensors, once",
            )


def _context(run: Run, function: type[torch.autograd.Function]) -> Any:
    """Return the node of the forward, which is its `ctx`; views and casts may lie above it."""
    waiting = [root.grad_fn for root in run.roots]
    seen = set()
    while waiting:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return node if type(node).__name__ == f"{function.__name__}Backward" else None
        waiting += [ahead for ahead, _ in node.next_functions]
    return None


def _held(ctx: Any) -> dict[str, Tensor]:
    """Return, of each attribute, the first tensor in it."""
    leaves = {name: [v for v in tree_leaves(value)[0] if isinstance(v, Tensor)] for name, value in vars(ctx).items()}
    return {name: found[0] for name, found in leaves.items() if found}


RULE = rule(__doc__, runtime=_run, kinds=("function",))
