"""Gradient modifiers: the value is x, bit for bit; the backward changes the gradient.

Shape and dtypes: elementwise, of any shape and floating dtype. Kinks: none in x. Second order: derivatives of the rule.
The factor and the bound are numbers, and are not differentiated. Each op has a rule, not a relaxation: `-scale · x` has
the same derivative, but that product can overflow where the gradient does not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.op import function


@function
def reverse_grad(x: Tensor, scale: float = 1.0) -> Tensor:
    """Gradient reversal: x in the forward, −scale · g in the backward; the second derivative is 0.

    Reference: Ganin, Lempitsky, "Unsupervised domain adaptation by backpropagation", 2015.
    """
    return x.clone()


@reverse_grad.vjp(linear=True)
def _reverse(g: Tensor, out: Tensor, x: Tensor, scale: float) -> tuple[Tensor, None]:
    return -scale * g, None


@function
def scale_grad(x: Tensor, scale: float) -> Tensor:
    """Gradient scaling: x in the forward, scale · g in the backward; the second derivative is 0."""
    return x.clone()


@scale_grad.vjp(linear=True)
def _scale(g: Tensor, out: Tensor, x: Tensor, scale: float) -> tuple[Tensor, None]:
    return scale * g, None


@function
def clip_grad(x: Tensor, bound: float) -> Tensor:
    """Gradient clipping: x in the forward, g clamped elementwise to ±bound in the backward.

    It is not linear in g. So no tangent corresponds to it, and forward mode raises; and the gradient of a sum is not
    the sum of the gradients, so gradient accumulation differs from one large batch.

    Reference: Graves, "Generating sequences with recurrent neural networks", 2013, section 2.1.
    """
    return x.clone()


@clip_grad.vjp(linear=False)
def _clip(g: Tensor, out: Tensor, x: Tensor, bound: float) -> tuple[Tensor, None]:
    return torch.clamp(g, -bound, bound), None


@function(derivative_of=torch.zeros_like)
def stop_grad(x: Tensor) -> Tensor:
    """Stopped gradient: x in the forward, with zero gradient and tangent. Unlike `x.detach()`, it copies x."""
    return x.clone()
