"""Functions with a point where the derivative does not exist, made finite there to the second order.

Of real tensors in float64, float32, float16 and bfloat16. The value at the singular point is the function's own; the
first and second derivative there are 0, by the rule for kinks: the point is a local optimum, or there is no direction
to prefer. No gradient is NaN there, which `torch.where(x > 0, x.sqrt(), 0)` cannot avoid.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pullback.op import function


def where_safe(
    condition: Tensor,
    f: Callable[[Tensor], Tensor],
    x: Tensor,
    otherwise: float | Tensor = 0.0,
    inside: float | Tensor = 1.0,
) -> Tensor:
    """Return f(x) where the condition holds and `otherwise` elsewhere, with no derivative through f elsewhere.

    `torch.where(condition, f(x), otherwise)` has gradient NaN where f's slope at x is infinite or NaN, since 0 times
    that is NaN. Here f never sees such an x: it gets `inside`, a point where f is smooth, in its place.

    Args:
        condition: bool tensor that broadcasts with x.
        f: elementwise.
        x: its argument.
        otherwise: the value where the condition does not hold; a tensor has its own gradient there.
        inside: any point where f and its derivatives are finite.
    """
    return torch.where(condition, f(torch.where(condition, x, inside)), otherwise)


@function
def safe_sqrt(x: Tensor) -> Tensor:
    """√x, elementwise; derivative 1/(2√x), at 0 both derivatives are 0. For x < 0 it is NaN."""
    return where_safe(x != 0, torch.sqrt, x)


@function
def safe_norm(x: Tensor, dim: int | tuple[int, ...] | None = None, keepdim: bool = False) -> Tensor:
    """Euclidean norm over `dim` (all by default); derivative x/‖x‖, at x = 0 both derivatives are 0.

    The elements are scaled before they are squared, so that neither large nor small ones leave the range.

    Reference: Blue, "A portable Fortran program to find the Euclidean norm of a vector", 1978.
    """
    scale = _scale(x, dim)
    squares = (x / scale).square().sum(dim, keepdim=True)
    norm = scale * where_safe(squares != 0, torch.sqrt, squares)
    if keepdim:
        return norm
    return norm.sum(dim)  # of one element: drops the dimensions


@function
def safe_normalize(x: Tensor, dim: int = -1) -> Tensor:
    """x/‖x‖ over `dim`; derivative (I − yyᵀ)/‖x‖ with y the result. At x = 0 value and derivatives are 0.

    It divides by no `eps`: the result has norm 1 however short x is.
    """
    scaled = x / _scale(x, dim)
    squares = scaled.square().sum(dim, keepdim=True)
    somewhere = squares != 0
    return torch.where(somewhere, scaled * torch.rsqrt(torch.where(somewhere, squares, 1.0)), 0.0)


@function
def safe_acos(x: Tensor) -> Tensor:
    """arccos x, elementwise; derivative −1/√(1 − x²). At ±1 both derivatives are 0.

    Beyond ±1, where rounding errors lead, the value is that at ±1 and the derivatives are 0. It is
    2 atan2(√(1 − x), √(1 + x)), whose derivative, unlike that of `torch.acos`, does not cancel near ±1.

    Reference: Kahan, "Branch cuts for complex elementary functions", 1987, procedure CACOS.
    """
    at_end = torch.where(x > 0, 0.0, torch.where(x < 0, math.pi, x))  # x is neither only where it is NaN
    return where_safe(x.abs() < 1, _acos, x, at_end, inside=0.0)


def _acos(x: Tensor) -> Tensor:
    return 2 * torch.atan2(torch.sqrt(1 - x), torch.sqrt(1 + x))


def _scale(x: Tensor, dim: int | tuple[int, ...] | None) -> Tensor | float:
    """Return the divisor that makes squaring safe: the largest magnitude, where it is finite and not 0; else 1.

    The caller's result is independent of it, except for rounding, so it needs no derivative.
    """
    if x.numel() == 0:
        return 1.0  # there is no largest
    largest = x.detach().abs().amax(() if dim is None else dim, keepdim=True)
    return torch.where(torch.isfinite(largest) & (largest > 0), largest, 1.0)
