"""Softmax and its logarithms, with accurate tails in the value, the gradient and the second derivative.

PyTorch computes log p of the largest entry as −log of a sum that rounds to 1: that is 0 where the exact value is
−10⁻⁹. It computes the gradients p − 1 and p (g − Σ g p) from the rounded p, and they cancel where p is near 1. Here
the largest entry c is treated separately. Let t = Σ e^(x_j − c) over the *other* entries; then the largest has
p = 1 / (1 + t) and 1 − p = t / (1 + t), where nothing cancels. The formulas consist of PyTorch's functions, in a form
whose derivatives by autograd do not cancel either. So derivatives of every order and all transforms are accurate;
`docs/numerics.md` has the errors.

Shape and dtypes: floating-point tensors of any shape, along one dimension, which may be negative. float16 and bfloat16
are computed in float32, float32 in float64, and the result is rounded once; float64 carries the rounding error of
x_j − c along. Kinks: none. Second order: derivatives of every order are those of the formulas. As in PyTorch, a row
with NaN or +∞, or of −∞ alone, gives NaN in `softmax` and `log_softmax`; −∞ beside finite entries has p = 0. Empty
tensors and integers are left to PyTorch's functions, errors included.

Reference: Blanchard, D. J. Higham, N. J. Higham, "Accurately computing the log-sum-exp and softmax functions", 2021.
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
        dim: the dimension of size n.

    Returns:
        The shape and dtype of x.

    The gradient is p_i (g_i − Σ p_j g_j), written with Σ p_j = 1. If the largest p exceeds 1/2, it is computed as 1 − Σ
    of the others. That is as accurate, and the gradient then consists of differences g_i − g_largest, so a nearly
    constant cotangent loses no digits.

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

    For the largest entry it is −log(1 + t), whose gradient has t / (1 + t) in place of 1 − p.

    Args:
        x: [..., n, ...].
        dim: the dimension of size n.

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
        dim: the dimension of size n.
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
    """`log_softmax` in the wider dtype in which it is computed."""
    _, place, below, others = apart(x, dim)
    top, total = logarithms(below.gather(dim, place), others.sum(dim, keepdim=True))
    return (below - total).scatter(dim, place, top)


def is_left_to_pytorch(x: Tensor) -> bool:
    """Whether PyTorch's function applies: no entries, or integers."""
    return x.numel() == 0 or not x.is_floating_point()


def apart(x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The largest entry c, its index, all x − c, and e^(x − c) with 0 in place of the largest.

    c is detached, so x − c has derivative 1, also for the largest entry, where it is 0.
    """
    wide = x.to(_WIDER.get(x.dtype, x.dtype))
    largest, place = wide.detach().max(dim, keepdim=True)
    below = wide - largest
    powers = torch.exp(below)
    if x.dtype == torch.float64:  # no wider dtype: a relative error of 2⁻⁵³ in x − c is one of up to 700 ulp
        # e^(d + e) = e^d (1 + e) but for e²/2: the error e of a difference d below 1024 is at most 2⁻⁴⁴
        powers = powers * (1 + lost_digits(wide.detach(), largest, below.detach()))
    return largest, place, below, powers.scatter(dim, place, 0.0)


def lost_digits(a: Tensor, b: Tensor, difference: Tensor) -> Tensor:
    """Rounding error e of a − b, with a − b = difference + e exactly; 0 where it is not finite.

    Reference: Knuth, "The Art of Computer Programming", volume 2, section 4.2.2, theorem B (two-sum).
    """
    back = difference - a
    return ((a - (difference - back)) - (b + back)).nan_to_num(0.0, 0.0, 0.0)


def logarithms(rise: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
    """log p of the largest entry, and log Σ e^(x − c).

    With r = x − c of the largest, which is 0, and v the sum for the others, these are −log(1 + v e^−r) and
    r + log(1 + v e^−r), or r − log(e^r + v) and log(e^r + v). All four values are accurate. Their derivatives by r,
    v / (1 + v) and 1 / (1 + v), and those of second order do not cancel in the first pair if v ≤ 1, and in the second
    if v ≥ 1.
    """
    small = torch.log1p(rest * torch.exp(-rise))
    large = torch.log1p(rest + torch.expm1(rise))
    near = rest < 1
    return torch.where(near, -small, rise - large), torch.where(near, rise + small, large)
