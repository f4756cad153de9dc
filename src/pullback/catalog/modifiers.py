"""Gradient modifiers: the value is x, bit for bit; the gradient is changed on its way back.

Elementwise, of any shape and floating dtype; no kinks in x. The factor and the bound are numbers, not differentiated.
They have rules, not relaxations: the derivative of `-scale · x` would be the same, but that product can overflow where
the gradient does not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.op import function


@function
def reverse_grad(x: Tensor, scale: float = 1.0) -> Tensor:
    """Return x; the gradient is −scale · g. The second derivative is 0.

    Reference: Ganin, Lempitsky, "Unsupervised domain adaptation by backpropagation", 2015.
    """
    return x.clone()


@reverse_grad.vjp(linear=True)
def _reverse(g: Tensor, out: Tensor, x: Tensor, scale: float) -> tuple[Tensor, None]:
    return -scale * g, None


@function
def scale_grad(x: Tensor, scale: float) -> Tensor:
    """Return x; the gradient is scale · g. The second derivative is 0."""
    return x.clone()


@scale_grad.vjp(linear=True)
def _scale(g: Tensor, out: Tensor, x: Tensor, scale: float) -> tuple[Tensor, None]:
    return scale * g, None


@function
def clip_grad(x: Tensor, bound: float) -> Tensor:
    """Return x; the gradient is g clamped to ±bound, element by element.

    Not linear in g: no tangent corresponds to it, so forward mode is refused; and the gradient of a sum is not the
    sum of the gradients, so gradient accumulation gives other numbers than one large batch.
    """
    return x.clone()


@clip_grad.vjp(linear=False)
def _clip(g: Tensor, out: Tensor, x: Tensor, bound: float) -> tuple[Tensor, None]:
    return torch.clamp(g, -bound, bound), None


@function(derivative_of=torch.zeros_like)
def stop_grad(x: Tensor) -> Tensor:
    """Return x; no gradient, and no tangent. Unlike `x.detach()` it shares no memory with x."""
    return x.clone()
