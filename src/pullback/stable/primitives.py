"""Small functions that stable forms are written with and PyTorch has no accurate kernel for."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def softplus(a: Tensor) -> Tensor:
    """Return log(1 + eᵃ) without overflow and without PyTorch's threshold."""
    return torch.clamp_min(a, 0) + torch.log1p(torch.exp(-torch.abs(a)))


def gauss(a: Tensor) -> Tensor:
    """Return e^(−a²/2), within 2 ulp."""
    return _exp_of_square(a, -0.5)


def qgauss(a: Tensor) -> Tensor:
    """Return e^(−a²/4), within 2 ulp."""
    return _exp_of_square(a, -0.25)


def sinpi(a: Tensor) -> Tensor:
    """Return sin(πa): a is reduced exactly, so that the zeros at the integers are exact and large numbers no matter."""
    whole = torch.round(a)
    value = torch.sin((a - whole) * math.pi)
    return torch.where(torch.remainder(whole, 2) == 1, -value, value)


def cospi(a: Tensor) -> Tensor:
    """Return cos(πa), as accurate as `sinpi`."""
    whole = torch.round(a)
    value = torch.sin((0.5 - torch.abs(a - whole)) * math.pi)
    return torch.where(torch.remainder(whole, 2) == 1, -value, value)


def trigamma(a: Tensor) -> Tensor:
    """Return the derivative of digamma."""
    value: Tensor = torch.special.polygamma(1, a)
    return value


def _exp_of_square(a: Tensor, factor: float) -> Tensor:
    # a² is rounded, and exp multiplies that error by a²/2. With a = h + r, h of half the digits, h² is exact and
    # a² − h² = (a − h)(a + h) is small: e^(ca²) = e^(ch²) e^(c(a − h)(a + h)). Veltkamp's splitting gives h; where
    # it overflows, or a is so large that the result is 0 in every dtype, a itself is used.
    split = 4097.0 if a.dtype == torch.float32 else 134217729.0
    near = torch.clamp(a, -1e6, 1e6)
    scaled = near * split
    high = scaled - (scaled - near)
    return torch.exp(high * high * factor) * torch.exp((near - high) * (near + high) * factor)
