"""Activations and related functions whose derivatives are accurate over the whole range.

Drop-in replacements for PyTorch's functions of the same name. PyTorch computes many of their gradients from rounded
results: that of `sigmoid` is y (1 − y), which is 0 in float32 from 16.6 on, where the exact one is 6·10⁻⁸. Here the
value, the gradient and the second derivative each have their own stable form. The forms were found by a search and
measured against exact values; `activations.stable.toml` holds their errors. A form runs as several PyTorch kernels, so
it is slower than one built-in kernel.

Shape and dtypes: elementwise, of any shape, float64, float32, float16 and bfloat16; `log_ndtr` and `erfcx` float64 and
float32 only, as in PyTorch. The forms apply on the CPU in float32, float16 and bfloat16; in float64 and on other
devices the ops are PyTorch's functions. Kinks: none, but the second derivative of `softsign` jumps at 0. Second order:
a form of its own; third derivatives are those of the formula as written. In the docstrings σ is the sigmoid, Φ and φ
are the distribution and the density of the standard normal.
"""

from __future__ import annotations

from math import factorial

import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.op import function


@function
def sigmoid(x: Tensor) -> Tensor:
    """σ(x) = 1 / (1 + e^−x); derivative σ(x) σ(−x), second derivative −σ(x) σ(−x) tanh(x/2)."""
    return torch.sigmoid(x)


@function
def tanh(x: Tensor) -> Tensor:
    """tanh x; derivative 1 / cosh² x, second derivative −2 tanh x / cosh² x.

    The usual form of the derivative, 1 − tanh² x, cancels where |tanh x| is near 1.
    """
    return torch.tanh(x)


@function
def expm1(x: Tensor) -> Tensor:
    """e^x − 1; every derivative is e^x.

    PyTorch's derivative, (e^x − 1) + 1, loses the digits of e^x for x < 0.
    """
    return torch.expm1(x)


@function
def silu(x: Tensor) -> Tensor:
    """x σ(x), also called swish; derivative σ(x) (1 + x σ(−x)), with a root at −1.278.

    Second derivative σ(x) σ(−x) (2 − x tanh(x/2)).

    Reference: Elfwing, Uchibe, Doya, "Sigmoid-weighted linear units for neural network function approximation in
    reinforcement learning", 2018.
    """
    return F.silu(x)


@function
def mish(x: Tensor) -> Tensor:
    """x t(x) with t(x) = tanh(log(1 + e^x)); derivative t + x σ(x) (1 − t²).

    Second derivative 2t′ + x t″ with t′ = σ(x) (1 − t²) and t″ = t′ (σ(−x) − 2 t σ(x)).

    Reference: Misra, "Mish: a self regularized non-monotonic activation function", 2019.
    """
    return F.mish(x)


@function
def gelu(x: Tensor) -> Tensor:
    """x Φ(x); derivative Φ(x) + x φ(x), second derivative φ(x) (2 − x²).

    Reference: Hendrycks, Gimpel, "Gaussian error linear units", 2016, section 2.
    """
    return F.gelu(x)


@function
def softsign(x: Tensor) -> Tensor:
    """x / (1 + |x|); derivative 1 / (1 + |x|)², second derivative −2 sign(x) / (1 + |x|)³.

    The second derivative jumps from 2 to −2 at 0, where it is set to their average, 0.

    Reference: Glorot, Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010,
    section 3.3.
    """
    return x / (1 + torch.abs(x))


@function
def tanhshrink(x: Tensor) -> Tensor:
    """x − tanh x, about x³ / 3 near 0; derivative tanh² x, second derivative 2 tanh x / cosh² x."""
    return x - torch.tanh(x)


@function
def logit(x: Tensor) -> Tensor:
    """log(x / (1 − x)), the inverse of the sigmoid; derivative 1 / (x (1 − x)).

    Second derivative (2x − 1) / (x (1 − x))². The domain is 0 ≤ x ≤ 1, with infinite values at its ends.
    """
    return torch.logit(x)


@function
def sinc(x: Tensor) -> Tensor:
    """sin(πx) / (πx), 1 at 0; derivative (cos(πx) − sinc x) / x, 0 at 0.

    The second derivative at 0 is −π²/3, where that of `torch.special.sinc` is NaN. In float64, where no form applies,
    a series replaces the quotient for |x| < 1/2.

    Reference: NIST, "Digital Library of Mathematical Functions", equation 10.49.3.
    """
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
"""Coefficients of sin(t)/t = Σ (−1)ᵏ t²ᵏ / (2k + 1)!.

At t = π/2 the first omitted term is 1.2e-23, and its third derivative by x is 1.4e-18: below the rounding errors of
derivatives that are of the order of 1.
"""


@function
def log_ndtr(x: Tensor) -> Tensor:
    """log Φ(x); derivative r = φ(x) / Φ(x), about −x for large negative x; second derivative −r (x + r)."""
    y: Tensor = torch.special.log_ndtr(x)
    return y


@function
def erfcx(x: Tensor) -> Tensor:
    """e^(x²) erfc(x), the scaled complementary error function; derivative 2x erfcx(x) − 2/√π.

    Second derivative (2 + 4x²) erfcx(x) − 4x/√π. Both cancel for large x as they are written here.

    Reference: NIST, "Digital Library of Mathematical Functions", equation 7.10.2, with w(ix) = erfcx(x).
    """
    y: Tensor = torch.special.erfcx(x)
    return y
