"""Functions from tutorials on custom autograd functions, as formulas: their derivatives need no code.

Shape and dtypes: of any shape, with broadcasting, every floating dtype; complex too, except in `relu`, `gated_rsqrt`
and the mask of `masked_sum`. Kinks: that of `relu` alone. Second order: derivatives of every order are those of the
formulas.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.op import function


@function
def exp(x: Tensor) -> Tensor:
    """e^x; every derivative is e^x."""
    return torch.exp(x)


@function
def sum_of_squares_and_product(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(x² + y², x·y); derivatives (2x, y) in x and (2y, x) in y."""
    return x * x + y * y, x * y


@function
def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Sum of the elements of x where mask is true; derivative 1 there, 0 elsewhere (also where x is not finite)."""
    return torch.where(mask, x, 0).sum()


@function
def gated_rsqrt(x: Tensor) -> Tensor:
    """σ(x) / √(1 + e^x); derivative that times (σ(−x) − σ(x)/2).

    It is computed as the exponential of a sum of logarithms: e^x overflows long before the result vanishes.
    """
    return torch.exp(F.logsigmoid(x) + 0.5 * F.logsigmoid(-x))


@function
def x_exp_minus_y(x: Tensor, y: Tensor) -> Tensor:
    """x·e^−y; derivatives e^−y in x, −x·e^−y in y."""
    return x * torch.exp(-y)


@function
def sin_squared(x: Tensor) -> Tensor:
    """sin² x; derivative sin 2x, second derivative 2 cos 2x."""
    return torch.sin(x).square()


@function
def relu(x: Tensor) -> Tensor:
    """max(x, 0); derivative 1 for x > 0, else 0: 0 at the kink, which is a local minimum."""
    return torch.relu(x)


@function
def double(x: Tensor) -> Tensor:
    """2x; derivative 2."""
    return 2 * x
