"""Logarithms of sigmoids and of their complements, accurate over the whole range.

Shape and dtypes: elementwise, of any shape, float64, float32, float16 and bfloat16. Kinks: none, they are smooth on
their domains. Second order: derivatives of every order are those of the formula.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.op import function


@function
def log_sigmoid(x: Tensor) -> Tensor:
    """log σ(x) = min(x, 0) − log(1 + e^−|x|); derivative σ(−x), second derivative −σ(x) σ(−x)."""
    return F.logsigmoid(x)


@function
def softplus(x: Tensor, beta: float | Tensor = 1.0) -> Tensor:
    """log(1 + e^{βx}) / β for β > 0; derivative σ(βx), second derivative β σ(βx) σ(−βx).

    `torch.nn.functional.softplus` returns x beyond a threshold, where its derivatives jump; here there is none, as
    log(1 + e^y) = −log σ(−y), which PyTorch computes without overflow. β may be a tensor, which then has a gradient.

    Reference: Dugas et al., "Incorporating second-order functional knowledge for better option pricing", 2001.
    """
    return -F.logsigmoid(-beta * x) / beta


@function
def log1mexp(x: Tensor) -> Tensor:
    """log(1 − e^−x) for x ≥ 0; derivative 1 / (e^x − 1), second derivative −e^x / (e^x − 1)².

    At 0 it is −∞ with derivative ∞, the limits; for x < 0 it is NaN. Below log 2, e^−x is near 1 and 1 − e^−x is
    computed by expm1; above, e^−x is small and the logarithm is computed by log1p. Neither cancels.

    Reference: Mächler, "Accurately computing log(1 − exp(−|a|))", 2012.
    """
    near = x < math.log(2)
    # Each branch sees only arguments in its range: a gradient of 0 times an infinite slope would be NaN.
    small = torch.where(near, x, 1.0) + 0.0  # −0 becomes 0: the slope there is +∞
    large = torch.where(near, 1.0, x)
    return torch.where(near, torch.log(-torch.expm1(-small)), torch.log1p(-torch.exp(-large)))
