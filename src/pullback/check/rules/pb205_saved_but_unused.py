"""saved-but-unused (PB205): the forward saves a tensor that no gradient depends on.

## What it finds
The backward runs with the values of each saved tensor replaced: by values of the opposite sign, zeros, very large
values and NaN. If no gradient changes by a bit, for all inputs and for each alone, and no second derivative changes
either, the backward does not use the tensor. The finding says how many bytes it takes. It is a warning if the forward
computed the tensor only to save it. It is an info if the tensor shares the memory of an input or output, or if an
argument of the example needs no gradient, since that gradient may depend on it.

## Why it hurts
Saved tensors live until the backward is over, and are often the largest part of the memory of training. Saving an input
also forbids changing it in place.

## Limits
The rule runs on the example alone: a tensor that another value of an option needs may be unused here. A tensor of which
only the shape is used counts as unused, since a shape can be kept on `ctx`. It is a warning for a tensor that the
forward made, and an info for an input or output, whose memory is often held elsewhere as well. Tensors saved only by
`save_for_forward` are not checked.

## Bad
```python
class Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        e = torch.exp(-x)
        out = 1 / (1 + e)
        ctx.save_for_backward(e, out)
        return out

    @staticmethod
    def backward(ctx, g):
        e, out = ctx.saved_tensors
        return g * out * (1 - out)
```

## Good
```python
class Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.sigmoid(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * out * (1 - out)
```
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from pullback.check.case import Case
from pullback.check.cases.repro import call_text
from pullback.check.derivative.agreement import difference
from pullback.check.rules._residuals import Origin, altered, bytes_kept, origin
from pullback.check.rules._rule import Rule
from pullback.check.trial import Raised, forward, guarded, standard_cotangents, vjp
from pullback.dtypes import has_reals
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


class _Swap:
    """Hooks that return another tensor in place of the `position`-th saved one; by default the saved ones.

    Attributes:
        saved: every tensor that was saved, in order.
    """

    def __init__(self, position: int = -1, other: Tensor | None = None) -> None:
        self.saved: list[Tensor] = []
        self._position, self._other = position, other
        self._hooks = saved_tensors_hooks(self._pack, self._unpack)

    def __enter__(self) -> _Swap:
        self._hooks.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._hooks.__exit__(*raised)

    def _pack(self, t: Tensor) -> int:
        self.saved.append(t.detach())
        return len(self.saved) - 1

    def _unpack(self, position: int) -> Tensor:
        if position == self._position and self._other is not None:
            return self._other
        return self.saved[position]


def _run(audit: Audit) -> Iterator[Finding]:
    if not audit.backward_works:
        return
    with _Swap() as swap:
        run = forward(audit.subject, audit.base)
    if not swap.saved or difference(_first(audit), _first(audit), rounding=0.0):
        return
    unused: dict[Origin, list[tuple[int, int]]] = {}
    for position, t in enumerate(swap.saved):
        others = altered(t)
        if others and not any(_matters(audit, position, other) for other in others):
            unused.setdefault(origin(t, run), []).append((position, t.numel() * t.element_size()))
    for what, found in unused.items():
        size = sum(size for _, size in found)
        which, it = (f"tensor {found[0][0]}", "it") if len(found) == 1 else (f"{len(found)} tensors", "them")
        yield audit.finding(
            "PB205",
            "warning" if what == "computed" and _are_all_differentiated(audit.base) else "info",
            "wrong",
            f"the forward saves {which} ({what}), of {size} bytes, and no gradient depends on {it}",
            case=audit.base,
            evidence=bytes_kept(size),
            tail=_script(audit, found[0][0]),
            hint=f"leave {it} out of ctx.save_for_backward; a shape or a dtype can be an attribute of ctx",
        )


def _are_all_differentiated(case: Case) -> bool:
    """Whether no argument is left whose gradient may depend on what is saved."""
    return not any(has_reals(t) and p not in case.wrt for p, t in case.all_tensors.items())


def _first(audit: Audit, mask: Sequence[bool] | None = None, swap: _Swap | None = None) -> list[Tensor | None]:
    with swap or _Swap():
        run = forward(audit.subject, audit.base, mask)
    return vjp(run, standard_cotangents(run.roots))


def _second(audit: Audit, swap: _Swap | None = None) -> list[Tensor | None]:
    """Return the gradient of the sum of squares of the gradients."""
    with swap or _Swap():
        run = forward(audit.subject, audit.base)
    found = vjp(run, standard_cotangents(run.roots), create_graph=True)
    squares = [g.abs().square().sum() for g in found if g is not None and g.requires_grad]
    if not squares:
        return []
    with guarded("double backward"):
        return list(torch.autograd.grad(sum(squares[1:], squares[0]), run.inputs, allow_unused=True))


def _matters(audit: Audit, position: int, other: Tensor) -> bool:
    """Whether another tensor in the place of a saved one changes any derivative, or makes it raise."""
    count = len(audit.names)
    alone = [[k == n for k in range(count)] for n in range(count)] if count > 1 else []
    try:
        for mask in (None, *alone):
            try:
                expected = _first(audit, mask)
            except Raised:
                continue  # PB113's subject
            if difference(expected, _first(audit, mask, _Swap(position, other)), rounding=0.0):
                return True
        try:
            second = _second(audit)
        except Raised:
            return False
        swapped = _second(audit, _Swap(position, other))
        return len(swapped) != len(second) or difference(second, swapped, rounding=0.0) is not None
    except Raised:
        return True


def _script(audit: Audit, position: int) -> list[str]:
    return [
        "saved = []",
        "def pack(t):",
        "    saved.append(t)",
        "    return len(saved) - 1",
        "def unpack(k):",
        f"    return torch.zeros_like(saved[k]) if k == {position} else saved[k]",
        audit.outs,
        "g = [torch.ones_like(o) for o in outs]",
        "print(torch.autograd.grad(outs, inputs, g, allow_unused=True))",
        "with torch.autograd.graph.saved_tensors_hooks(pack, unpack):",
        f"    out = fn({call_text(audit.base)})",
        audit.outs,
        f"print('with zeros for saved tensor {position}:', torch.autograd.grad(outs, inputs, g, allow_unused=True))",
    ]


RULE = Rule(__doc__, runtime=_run, kinds=("function",), shrinks=False, needs_cpu=True)
"""Not shrunk: the bytes in the message are those of the example."""
