"""Straight-through estimators: a step function in the forward, the derivative of the identity or of a clamp.

Shape and dtypes: elementwise, of any shape, float64, float32, float16 and bfloat16. The value is PyTorch's, bit for
bit, also where `x + (sign(x) − x).detach()` is not, as in bfloat16 from 300 on. Kinks: the derivative is that of the
relaxation, 1 for the identity; for a clamp 1 within the bounds, *the bounds included*, and 0 outside. Second order: 0
everywhere. Where x is infinite the derivative is taken as 0; no input but NaN gives NaN.

Reference: Bengio, Léonard, Courville, "Estimating or propagating gradients through stochastic neurons", 2013; for
the clamp, which passes g · 1(|x| ≤ 1), Courbariaux et al., "Binarized neural networks", 2016.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.op import function


def identity(x: Tensor) -> Tensor:
    """x: relaxation of the estimators that pass every gradient."""
    return x


def within(x: Tensor, low: float, high: float) -> Tensor:
    """x clamped to [low, high]: relaxation of the estimators that pass the gradient between these bounds."""
    return torch.clamp(x, low, high)


def within_bound(x: Tensor, bound: float = 1.0) -> Tensor:
    """x clamped to ±bound: relaxation of the clipped signs."""
    return torch.clamp(x, -bound, bound)


@function(derivative_of=identity)
def round_ste(x: Tensor) -> Tensor:
    """Round to the nearest integer, halves to the even one; derivative 1."""
    return torch.round(x)


@function(derivative_of=identity)
def floor_ste(x: Tensor) -> Tensor:
    """Round down; derivative 1."""
    return torch.floor(x)


@function(derivative_of=identity)
def sign_ste(x: Tensor) -> Tensor:
    """Sign, 0 at 0 (three levels); derivative 1."""
    return torch.sign(x)


@function(derivative_of=identity)
def binary_sign_ste(x: Tensor) -> Tensor:
    """Sign, 1 at 0 (two levels); derivative 1."""
    return _binary_sign(x)


@function(derivative_of=within)
def clipped_round_ste(x: Tensor, low: float, high: float) -> Tensor:
    """Clamp to [low, high], then round; derivative 1 where low ≤ x ≤ high, 0 outside.

    The mask is that of x *before* rounding, as in Esser et al., "Learned step size quantization", 2020, where the
    bounds themselves are outside. PyTorch's `fake_quantize` masks by the rounded value, and so passes gradients up to
    half a step beyond the bounds.
    """
    return torch.round(torch.clamp(x, low, high))


@function(derivative_of=within)
def clipped_floor_ste(x: Tensor, low: float, high: float) -> Tensor:
    """Clamp to [low, high], then round down; derivative 1 where low ≤ x ≤ high (x before rounding), 0 outside."""
    return torch.floor(torch.clamp(x, low, high))


@function(derivative_of=within_bound)
def clipped_sign_ste(x: Tensor, bound: float = 1.0) -> Tensor:
    """Sign, 0 at 0 (three levels); derivative 1 where |x| ≤ bound, 0 outside."""
    return torch.sign(x)


@function(derivative_of=within_bound)
def clipped_binary_sign_ste(x: Tensor, bound: float = 1.0) -> Tensor:
    """Sign, 1 at 0 (two levels); derivative 1 where |x| ≤ bound, 0 outside."""
    return _binary_sign(x)


def _binary_sign(x: Tensor) -> Tensor:
    # -1 + 2·[not x < 0], but NaN where x is.
    return torch.where(x < 0, -1.0, torch.where(x >= 0, 1.0, x))
