"""Functions with given derivatives, in native ops: the native form of an op whose derivatives have stable forms.

With `a` a copy of `x` whose gradient is stopped and `d = x − a`, the quantity `s = d (f₁(a) + d f₂(a) / 2)` is 0, its
derivative is f₁ and its second derivative f₂. As for a relaxed op, `f(a) − (cut(s) − s)` then has the value f(a), bit
for bit, and these derivatives, in every transform. The third derivative, which is not carried, is ±∞ and not 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from pullback.bind.relaxed import cut

Function = Callable[..., Tensor]
_BEYOND = 2.5
"""d^2.5 is 0 at 0 with two derivatives, and has no third."""


def first_order(value: Function, slopes: Sequence[Function]) -> Function:
    """Return a function for graphs of a first derivative in plain eager mode; it has no other."""

    def function(*given: Tensor) -> Tensor:
        xs = torch.broadcast_tensors(*given)
        at = [x.detach() for x in xs]
        s = _total([(x - a) * slope(*at) for x, a, slope in zip(xs, at, slopes, strict=True)])
        return value(*at) - (s.detach() - s)

    return function


def gradients(slopes: Sequence[Function]) -> Callable[..., list[Tensor]]:
    """Return the gradient of a function whose slopes are given: of its inputs and a cotangent, one for each input."""

    def function(*given: Tensor) -> list[Tensor]:
        *inputs, g = given
        xs = torch.broadcast_tensors(*inputs)
        return [(g * slope(*xs)).sum_to_size(x.shape) for slope, x in zip(slopes, inputs, strict=True)]

    return function


def first_order_within(value: Function, slopes: Sequence[Function]) -> Function:
    """Return `first_order` for the middle of a formula: its own value is right too, where that has NaN.

    There s = (x − a) f₁(a) is ∞ − ∞ or 0 · ∞. Where an input is infinite its derivative is 0.
    """

    def function(*given: Tensor) -> Tensor:
        xs = torch.broadcast_tensors(*given)
        at = [x.detach() for x in xs]
        steps = [_step(x, a) for x, a in zip(xs, at, strict=True)]
        reached = [slope(*at).masked_fill(torch.isinf(a), 0.0) for slope, a in zip(slopes, at, strict=True)]
        s = _total([_times(step, slope, step, 0.5) for step, slope in zip(steps, reached, strict=True)])
        return value(*at) - (s.detach() - s)

    return function


def second_order(
    value: Function, slopes: Sequence[Function], curvatures: Mapping[tuple[int, int], Function]
) -> Function:
    """Return the native form; where an input is infinite its derivatives are 0, as a relaxed op's."""

    def function(*given: Tensor) -> Tensor:
        xs = torch.broadcast_tensors(*given)
        at = [cut(x) for x in xs]
        steps = [_step(x, a) for x, a in zip(xs, at, strict=True)]
        infinite = [torch.isinf(x) for x in xs]
        s = _total(steps).pow(_BEYOND)
        for i, step in enumerate(steps):
            s = s + _times(step, slopes[i](*at).masked_fill(infinite[i], 0.0), step, 0.5)
        for (i, j), curvature in curvatures.items():
            factor = (curvature(*at) * (0.5 if i == j else 1.0)).masked_fill(infinite[i] | infinite[j], 0.0)
            along = steps[i] if i == j else steps[i] + steps[j]
            s = s + _times(steps[i] * steps[j], factor, along, 1.5)
        return value(*at) - (cut(s) - s)

    return function


def _total(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _step(x: Tensor, a: Tensor) -> Tensor:
    """Return 0 with derivative 1; with derivative 0 where x is infinite."""
    return torch.where(torch.isinf(x), 0.0, x - a)


def _times(zero: Tensor, factor: Tensor, d: Tensor, power: float) -> Tensor:
    """Return a product with 0 as 0, also where a factor is infinite.

    There it is a power of d = 0 that has an infinite derivative of the product's order, of the sign of the factor, and
    no lower one; where the factor is NaN, that derivative is.
    """
    steep = ~torch.isfinite(factor)
    sign = torch.where(factor > 0, 1.0, torch.where(factor < 0, -1.0, 0.0)).to(d.dtype)
    # elsewhere the power is taken at 1, so that no 0 · ∞ arises
    return zero * torch.where(steep, 0.0, factor) + torch.where(
        steep, sign * torch.where(steep, d, 1.0).pow(power), 0.0
    )
