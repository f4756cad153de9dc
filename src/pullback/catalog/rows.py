"""Softmax and its logarithms, with tails that are right: in value, gradient and second derivative.

PyTorch computes log p of the largest entry as −log of a sum that rounds to 1, which is 0 where the exact value is
−10⁻⁹, and the gradients p − 1 and p (g − Σ g p) from p as it was rounded: they cancel where p is near 1. Here the
largest entry c is taken apart, and with it what cancels. Let t = Σ e^(x_j − c) over the *others*, so that the largest
has p = 1 / (1 + t) and 1 − p = t / (1 + t). Everything is written in PyTorch's own functions so that what autograd
makes of it does not cancel either; hence every order and every transform has it. How good: `docs/numerics.md`.

Floating-point tensors of any shape along one dimension, which may be negative. float16 and bfloat16 are computed in
float32, and float32 in float64, and rounded once; float64 carries the rounding error of x_j − c along. Smooth. A row
that holds NaN or +∞, or nothing but −∞, gives NaN in `softmax` and `log_softmax`, as PyTorch's; −∞ beside finite
entries has p = 0. Empty tensors and those of integers are left to PyTorch's functions, errors included.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.op import function

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}


@function
def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """p_i = e^x_i / Σ e^x_j over `dim`; gradient p_i Σ_j p_j (g_i − g_j), second derivatives by the same forms.

    Args:
        x: [..., n, ...].
        dim: where n is.

    Returns:
        The shape and dtype of x.

    Where the largest p is above 1/2 it is computed as 1 − Σ of the others, which is as accurate, and whose gradient
    is in the differences g_i − g_largest: a cotangent that is nearly constant loses nothing.

    Raises:
        IndexError: if there is no such dimension.
        NotImplementedError: for integers.
    """
    if is_left_to_pytorch(x):
        return torch.softmax(x, dim)
    _, place, below, others = apart(x, dim)
    rest = others.sum(dim, keepdim=True)
    power = torch.exp(below.gather(dim, place))
    shares = others / (power + rest)
    largest = torch.where(rest < 1, 1 - shares.sum(dim, keepdim=True), power / (power + rest))
    return shares.scatter(dim, place, largest).to(x.dtype)


@function
def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """log p_i = x_i − log Σ e^x_j over `dim`; gradient g_i − p_i Σ g_j, second derivative −(Σ g_j) ∂p.

    For the largest it is −log(1 + t), with t / (1 + t) and not 1 − p in its gradient.

    Args:
        x: [..., n, ...].
        dim: where n is.

    Returns:
        The shape and dtype of x.

    Raises:
        IndexError: if there is no such dimension.
        NotImplementedError: for integers.
    """
    return torch.log_softmax(x, dim) if is_left_to_pytorch(x) else wide_log_softmax(x, dim).to(x.dtype)


@function
def logsumexp(x: Tensor, dim: int = -1, keepdim: bool = False) -> Tensor:
    """log Σ e^x_j over `dim`; gradient g p_j, second derivative g p_i (δ_ij − p_j), which does not cancel.

    Args:
        x: [..., n, ...].
        dim: where n is.
        keepdim: whether that dimension stays, with size 1.

    Returns:
        The shape of x without `dim`, in its dtype. ±∞ where an entry is +∞, or all are −∞; the derivatives are 0
        there, where those of PyTorch are NaN.

    Raises:
        IndexError: if there is no such dimension.
    """
    if is_left_to_pytorch(x):
        return torch.logsumexp(x, dim, keepdim=keepdim)
    ends = x.detach().amax(dim, keepdim=True)
    infinite = torch.isinf(ends)
    largest, place, below, others = apart(torch.where(infinite, 0.0, x), dim)
    _, total = logarithms(below.gather(dim, place), others.sum(dim, keepdim=True))
    result = torch.where(infinite, ends, (largest + total).to(x.dtype))
    return result if keepdim else result.squeeze(dim)


def wide_log_softmax(x: Tensor, dim: int) -> Tensor:
    """Return `log_softmax` in the dtype that it is computed in."""
    _, place, below, others = apart(x, dim)
    top, total = logarithms(below.gather(dim, place), others.sum(dim, keepdim=True))
    return (below - total).scatter(dim, place, top)


def is_left_to_pytorch(x: Tensor) -> bool:
    """Whether there is nothing to gain: no entries, or integers."""
    return x.numel() == 0 or not x.is_floating_point()


def apart(x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the largest entry c, where it is, all x − c, and e^(x − c) with 0 in place of the largest.

    c is a number without derivative. x − c of the largest is 0 and has one.
    """
    wide = x.to(_WIDER.get(x.dtype, x.dtype))
    largest, place = wide.detach().max(dim, keepdim=True)
    below = wide - largest
    powers = torch.exp(below)
    if x.dtype == torch.float64:  # nothing is wider: an error of 2⁻⁵³ in x − c, relative, is one of up to 700 ulp
        powers = powers * (1 + lost_digits(wide.detach(), largest, below.detach()))
    return largest, place, below, powers.scatter(dim, place, 0.0)


def lost_digits(a: Tensor, b: Tensor, difference: Tensor) -> Tensor:
    """Return the rounding error of a − b (Knuth's two-sum: a − b = difference + error); 0 where it is not finite."""
    back = difference - a
    return ((a - (difference - back)) - (b + back)).nan_to_num(0.0, 0.0, 0.0)


def logarithms(rise: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p of the largest entry, and log Σ e^(x − c).

    With r = x − c of the largest, which is 0, and v the sum for the others, these are −log(1 + v e^−r) and
    r + log(1 + v e^−r), or r − log(e^r + v) and log(e^r + v). All four are right; the derivatives in r, −v / (1 + v)
    and 1 / (1 + v), and those of second order, come without cancellation from the first pair if v ≤ 1, and from the
    second if v ≥ 1.
    """
    small = torch.log1p(rest * torch.exp(-rise))
    large = torch.log1p(rest + torch.expm1(rise))
    near = rest < 1
    return torch.where(near, -small, rise - large), torch.where(near, rise + small, large)
