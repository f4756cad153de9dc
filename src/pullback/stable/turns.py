"""Derivatives by stable forms, order by order, in plain eager mode; autograd's own derivatives beyond.

A native form (`jet`) carries a fixed number of orders. Here autograd records, and the next derivative is computed on
demand: after the last form, it is the derivative of the formula as written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback import _torch, dispatch
from pullback.dispatch import World

Function = Callable[..., Tensor]
By = tuple[int, ...]
"""Positions of the inputs that a function is differentiated by, in order; none for its value."""


class Turns:
    """A function of tensors of one shape, and its derivatives.

    Args:
        form: returns the form of the value or of a derivative, or `None`.
        written: the formula, which autograd differentiates further.
    """

    def __init__(self, form: Callable[[By], Function | None], written: Function) -> None:
        self.form, self._written = form, written

    def __call__(self, *given: Tensor) -> Tensor:
        """Return the value; in plain eager mode autograd records a node that differentiates it further."""
        return self.of((), torch.broadcast_tensors(*given))

    def of(self, by: By, xs: Sequence[Tensor]) -> Tensor:
        """Return a derivative; where autograd records, one that it can differentiate further."""
        form = self.form(by)
        if form is not None:
            if not torch.is_grad_enabled():
                return form(*xs)
            if dispatch.world() is World.EAGER:
                out: Tensor = _apply(self, form, by, *xs)
                return out
        return self._as_written(by, xs)

    def _as_written(self, by: By, xs: Sequence[Tensor]) -> Tensor:
        record = torch.is_grad_enabled()
        with torch.enable_grad():
            aliases = [x.view_as(x) if x.requires_grad else x.detach().requires_grad_() for x in xs]
            out = self._written(*aliases)
            for i in by:
                if not out.requires_grad:
                    return torch.zeros_like(out)
                ones = torch.ones_like(out)
                (out,) = torch.autograd.grad(
                    out, aliases[i], ones, create_graph=True, allow_unused=True, materialize_grads=True
                )
        return out if record else out.detach()


class _Turn(torch.autograd.Function):
    """One derivative, whose gradient is the next."""

    @staticmethod
    def forward(ctx: Any, turns: Turns, form: Function, by: By, *xs: Tensor) -> Tensor:
        ctx.turns, ctx.by = turns, by
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*xs)
        return form(*xs)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> tuple[Any, ...]:
        if g is None:
            return (None,) * len(ctx.needs_input_grad)
        xs, by = ctx.saved_tensors, ctx.by
        wanted = ctx.needs_input_grad[3:]
        gs = [g * ctx.turns.of(tuple(sorted((*by, i))), xs) if needed else None for i, needed in enumerate(wanted)]
        return (None, None, None, *gs)


_apply = _torch.eager_apply(_Turn)
