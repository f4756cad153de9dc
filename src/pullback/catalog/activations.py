"""Activations and their like with derivatives that are accurate over the whole range.

Drop-in replacements for PyTorch's functions of the same name. PyTorch computes many of their gradients from rounded
results: that of `sigmoid` is y (1 − y), which is 0 in float32 from 16.6 on, where the exact one is 6·10⁻⁸. Here the
value, the gradient and the second derivative have forms of their own, found by a search and measured against exact
values; `activations.stable.toml` says how good each is. Each form runs in PyTorch's kernels one by one: it is slower
than one built-in kernel.

Elementwise, of any shape, on the CPU, in float32, bfloat16 and float16; elsewhere they are PyTorch's functions as they
are. `log_ndtr` and `erfcx` are of float32 and float64 alone: PyTorch has no kernels of 16 bits for them. Smooth, but
for `softsign`, whose second derivative jumps at 0. Two orders of derivatives have forms; a third is that of the formula
as written.
"""

from __future__ import annotations

from math import factorial

import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.op import function


@function
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e^−x); derivative σ(x) σ(−x)."""
    return torch.sigmoid(x)


@function
def tanh(x: Tensor) -> Tensor:
    """tanh x; derivative 1 / cosh² x, which 1 − tanh² x is not in floating point."""
    return torch.tanh(x)


@function
def expm1(x: Tensor) -> Tensor:
    """e^x − 1; derivative e^x, which (e^x − 1) + 1 is not for x < 0."""
    return torch.expm1(x)


@function
def silu(x: Tensor) -> Tensor:
    """x σ(x), also called swish; derivative σ(x) (1 + x σ(−x)), with a root at −1.278.

    Reference: Elfwing et al., "Sigmoid-weighted linear units", 2018.
    """
    return F.silu(x)


@function
def mish(x: Tensor) -> Tensor:
    """x tanh(log(1 + e^x)).

    Reference: Misra, "Mish: a self regularized non-monotonic activation function", 2019.
    """
    return F.mish(x)


@function
def gelu(x: Tensor) -> Tensor:
    """x Φ(x), with Φ the normal distribution; derivative Φ(x) + x φ(x).

    Reference: Hendrycks and Gimpel, "Gaussian error linear units", 2016.
    """
    return F.gelu(x)


@function
def softsign(x: Tensor) -> Tensor:
    """x / (1 + |x|); derivative 1 / (1 + |x|)²; its second derivative jumps at 0, where it is taken as 0."""
    return x / (1 + torch.abs(x))


@function
def tanhshrink(x: Tensor) -> Tensor:
    """x − tanh x ≈ x³ / 3 near 0; derivative tanh² x."""
    return x - torch.tanh(x)


@function
def logit(x: Tensor) -> Tensor:
    """log(x / (1 − x)) for 0 < x < 1, the inverse of the sigmoid; derivative 1 / (x (1 − x))."""
    return torch.logit(x)


@function
def sinc(x: Tensor) -> Tensor:
    """sin(πx) / (πx), 1 at 0; second derivative −π²/3 there, where that of `torch.special.sinc` is NaN."""
    if x.dtype != torch.float64:
        y: Tensor = torch.special.sinc(x)
        return y
    near = torch.abs(x) < 0.5
    t = torch.where(near, torch.pi * x, 0.0) ** 2
    series = torch.full_like(t, _SINC_SERIES[-1])
    for coefficient in _SINC_SERIES[-2::-1]:
        series = series * t + coefficient
    return torch.where(near, series, torch.special.sinc(torch.where(near, 1.0, x)))


_SINC_SERIES = tuple((-1) ** k / factorial(2 * k + 1) for k in range(13))
"""Of sin(t)/t = Σ (−1)ᵏ t²ᵏ / (2k + 1)!. At t = π/2 the first term left out has a third derivative by x of 2e-18."""


@function
def log_ndtr(x: Tensor) -> Tensor:
    """log Φ(x), of the normal distribution; derivative φ(x) / Φ(x), about −x far to the left."""
    y: Tensor = torch.special.log_ndtr(x)
    return y


@function
def erfcx(x: Tensor) -> Tensor:
    """e^(x²) erfc(x), the scaled complementary error function; derivative 2x erfcx(x) − 2/√π."""
    y: Tensor = torch.special.erfcx(x)
    return y
