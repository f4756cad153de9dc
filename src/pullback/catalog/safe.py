"""Functions with a singular point, at which the first and the second derivative are finite.

Shape and dtypes: real tensors of any shape, float64, float32, float16 and bfloat16. Kinks: the value at the singular
point is the function's own; both derivatives are 0 there, by the policy for kinks, since the point is a local optimum
or no direction is preferred. No gradient is NaN, as it is with `torch.where(x > 0, x.sqrt(), 0)` at 0. Second order:
derivatives of the formulas.
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
    """f(x) where a condition holds, and `otherwise` elsewhere, where no derivative flows through f.

    `torch.where(condition, f(x), otherwise)` has gradient NaN where the slope of f at x is infinite or NaN, since 0
    times that is NaN. Here f is evaluated at `inside`, a smooth point, in place of such an x (the double-where trick).

    Args:
        condition: bool tensor that broadcasts with x.
        f: an elementwise function.
        x: its argument.
        otherwise: value where the condition does not hold; if it is a tensor, it has a gradient there.
        inside: any point where f and its derivatives are finite.
    """
    return torch.where(condition, f(torch.where(condition, x, inside)), otherwise)


@function
def safe_sqrt(x: Tensor) -> Tensor:
    """√x, elementwise; derivative 1/(2√x). At 0 both derivatives are 0; for x < 0 it is NaN."""
    return where_safe(x != 0, torch.sqrt, x)


@function
def safe_norm(x: Tensor, dim: int | tuple[int, ...] | None = None, keepdim: bool = False) -> Tensor:
    """Euclidean norm over `dim` (all by default); derivative x/‖x‖. At x = 0 both derivatives are 0.

    The elements are scaled before they are squared, so that the squares neither overflow nor underflow: the largest is
    1, and those that underflow are far below its rounding error.

    Reference: Blue, "A portable Fortran program to find the Euclidean norm of a vector", 1978, which avoids
    the pass for the largest element by three sums: of small, ordinary and large elements.
    """
    scale = _scale(x, dim)
    squares = (x / scale).square().sum(dim, keepdim=True)
    norm = scale * where_safe(squares != 0, torch.sqrt, squares)
    if keepdim:
        return norm
    return norm.sum(dim)  # over one element: only drops the dimensions


@function
def safe_normalize(x: Tensor, dim: int = -1) -> Tensor:
    """x/‖x‖ over `dim`; derivative (I − yyᵀ)/‖x‖ with y the result. At x = 0 value and derivatives are 0.

    There is no `eps` in the denominator: the result has norm 1 however small x is.
    """
    scaled = x / _scale(x, dim)
    squares = scaled.square().sum(dim, keepdim=True)
    is_nonzero = squares != 0
    return torch.where(is_nonzero, scaled * torch.rsqrt(torch.where(is_nonzero, squares, 1.0)), 0.0)


@function
def safe_acos(x: Tensor) -> Tensor:
    """arccos x, elementwise; derivative −1/√(1 − x²). At ±1 both derivatives are 0.

    Beyond ±1, which rounding may reach, the value is that at ±1 and the derivatives are 0. With u = √(1 − x) and
    v = √(1 + x) it is computed as 2 atan2(u, v), since tan(t/2) = √((1 − cos t)/(1 + cos t)). The derivative of this,
    2 (v u′ − u v′)/(u² + v²), has two terms of one sign: unlike that of `torch.acos`, it does not cancel near ±1.

    Reference: Kahan, "Branch cuts for complex elementary functions", 1987, procedure CACOS.
    """
    at_end = torch.where(x > 0, 0.0, torch.where(x < 0, math.pi, x))  # x is neither only where it is NaN
    return where_safe(x.abs() < 1, _acos, x, at_end, inside=0.0)


def _acos(x: Tensor) -> Tensor:
    return 2 * torch.atan2(torch.sqrt(1 - x), torch.sqrt(1 + x))


def _scale(x: Tensor, dim: int | tuple[int, ...] | None) -> Tensor | float:
    """Divisor that keeps squares in range: the largest magnitude if that is finite and not 0; else 1.

    The result of the caller does not depend on it, except for rounding, so it has no derivative.
    """
    if x.numel() == 0:
        return 1.0  # no largest magnitude
    largest = x.detach().abs().amax(() if dim is None else dim, keepdim=True)
    return torch.where(torch.isfinite(largest) & (largest > 0), largest, 1.0)
