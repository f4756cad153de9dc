"""Derivatives that have stable forms, one after another, in plain eager mode; those beyond, as autograd takes them.

A jet (`jet`) carries two orders and has no third. Where autograd records, the next derivative is asked for when it is
needed: that of the second is then the third derivative of the formula as written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback import _torch

Function = Callable[..., Tensor]
By = tuple[int, ...]
"""Positions of the inputs that a function is differentiated by, in order; none for its value."""


class Turns:
    """A function of tensors of one shape, and its derivatives.

    Args:
        forms: of the value and of the derivatives that have one.
        written: the formula, which autograd differentiates further.
    """

    def __init__(self, forms: Mapping[By, Function], written: Function) -> None:
        self.forms, self._written = forms, written

    def __call__(self, *given: Tensor) -> Tensor:
        """Return the value, of which autograd takes derivatives in plain eager mode."""
        return self.of((), torch.broadcast_tensors(*given))

    def of(self, by: By, xs: Sequence[Tensor]) -> Tensor:
        """Return a derivative; where autograd records, one that it can differentiate further."""
        if by in self.forms:
            if not torch.is_grad_enabled():
                return self.forms[by](*xs)
            if _torch.is_plain_eager():
                out: Tensor = _apply(self, by, *xs)
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
    def forward(ctx: Any, turns: Turns, by: By, *xs: Tensor) -> Tensor:
        ctx.turns, ctx.by = turns, by
        ctx.save_for_backward(*xs)
        return turns.forms[by](*xs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        xs, by = ctx.saved_tensors, ctx.by
        wanted = ctx.needs_input_grad[2:]
        gs = [g * ctx.turns.of(tuple(sorted((*by, i))), xs) if needed else None for i, needed in enumerate(wanted)]
        return (None, None, *gs)


_apply = _torch.plain_apply(_Turn)
