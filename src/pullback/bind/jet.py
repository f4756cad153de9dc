"""Functions with given derivatives, in native ops: the native form of an op whose derivatives have stable forms.

With `a` a copy of `x` whose gradient is stopped and `d = x − a`, the Taylor polynomial s = d f₁(a) + d² f₂(a) / 2 + …
is 0, and its derivatives are f₁(a), f₂(a), …. As for a relaxed op, `f(a) − (cut(s) − s)` then has the value f(a), bit
for bit, and these derivatives, in every transform. With several inputs there is a term for each partial derivative.

A polynomial of order n has no derivative beyond n: that would be 0, silently. So the next one is an error
(`_error_from`). No composition of finitely many native ops is right in all orders: the terms of a Taylor series with
the right coefficients are infinitely many.

Where x is ±∞ there is no d. There f(x) is f₁(a) x if these are equal, as for a function that grows like its asymptote,
or if f(a) is NaN: this has the derivative f₁(a), and 0 for the higher ones. Elsewhere the derivatives by an infinite x
are 0: those of a function that tends to a number. Where a derivative is another one, it and all of its order and beyond
are NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import factorial, inf, prod

import torch
from torch import Tensor

from pullback.bind.relaxed import cut
from pullback.numerics.formats import working

Function = Callable[..., Tensor]
By = tuple[int, ...]


def first_order(value: Function, slopes: Sequence[Function]) -> Function:
    """Return a function for graphs of a first derivative in plain eager mode; it has no other."""

    def function(*xs: Tensor) -> Tensor:
        at = [x.detach() for x in xs]
        s = _total([(x - a) * slope(*at) for x, a, slope in zip(_summable(xs), _summable(at), slopes, strict=True)])
        return value(*at) - (s.detach() - s).to(xs[0].dtype)

    return function


def gradients(slopes: Sequence[Function]) -> Callable[..., list[Tensor]]:
    """Return the gradient of a function whose slopes are given: of its inputs and a cotangent, one for each input."""

    def function(*given: Tensor) -> list[Tensor]:
        *xs, g = given
        return [_pulled_back(g, slope(*xs), x) for slope, x in zip(slopes, xs, strict=True)]

    return function


def _pulled_back(g: Tensor, slope: Tensor, x: Tensor) -> Tensor:
    """Return the cotangent of a tensor that may be broadcast.

    That of the result is summed up before it is multiplied by a slope that is the same for all: Σ gᵢ · ∞ is not
    Σ (gᵢ · ∞), which has two signs.
    """
    if g.shape == x.shape:
        return g * slope
    shape = _broadcast(slope, x)
    return (g.to(working(g.dtype)).sum_to_size(shape) * slope).sum_to_size(x.shape).to(x.dtype)


def _summable(xs: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors, those that are broadcast in a dtype in which cotangents are summed up, as `_pulled_back` does."""
    shape = _broadcast(*xs)
    return [x if x.shape == shape else x.to(working(x.dtype)) for x in xs]


def _broadcast(*xs: Tensor) -> torch.Size:
    """Return the shape that tensors are broadcast to; `torch.broadcast_shapes` imports SymPy."""
    shape: torch.Size = torch.broadcast_tensors(*xs)[0].shape
    return shape


def first_order_within(value: Function, slopes: Sequence[Function]) -> Function:
    """Return `first_order` for the middle of a formula: its own value is right too, where that has NaN.

    There s = (x − a) f₁(a) is ∞ − ∞ or 0 · ∞.
    """
    partials: dict[By, Function] = {(i,): slope for i, slope in enumerate(slopes)}

    def function(*xs: Tensor) -> Tensor:
        point = _Point(xs, torch.Tensor.detach)
        out, s = _expanded(value, partials, point)
        return out - (s.detach() - s).to(out.dtype)

    return function


def jet(value: Function, partials: Mapping[By, Function]) -> Function:
    """Return the native form that has the derivatives given; those of higher order are a RuntimeError of PyTorch.

    Args:
        value: of the inputs.
        partials: all partial derivatives up to some order, by positions of inputs in ascending order.
    """
    order = max(map(len, partials))

    def function(*xs: Tensor) -> Tensor:
        point = _Point(xs, cut)
        out, s = _expanded(value, partials, point)
        s = s + _error_from(order + 1, _total(point.steps))
        return out - (cut(s) - s).to(out.dtype)

    return function


class _Point:
    """Where a function is expanded.

    Attributes:
        xs: the inputs.
        at: their values.
        infinite: where these are infinite.
        steps: 0 with derivative 1, and with derivative 0 where infinite.
    """

    def __init__(self, xs: Sequence[Tensor], stop: Callable[[Tensor], Tensor]) -> None:
        self.xs = xs
        self.at = [stop(x) for x in xs]
        self.infinite = [torch.isinf(a) for a in self.at]
        pairs = zip(_summable(xs), _summable(self.at), self.infinite, strict=True)
        self.steps = [torch.where(inf, 0.0, x - a) for x, a, inf in pairs]

    def near(self, i: int) -> Tensor:
        """Return the step of an input, and 1/x² where that is infinite: 0, too, but a function of x."""
        inverse = torch.where(self.infinite[i], self.xs[i], 1.0).pow(-2)
        return torch.where(self.infinite[i], inverse, self.steps[i])


def _expanded(value: Function, partials: Mapping[By, Function], point: _Point) -> tuple[Tensor, Tensor]:
    """Return the value, with derivatives where inputs are infinite, and the Taylor polynomial, which has the others."""
    factors = {by: partial(*point.at) for by, partial in partials.items()}
    out, carried = _with_asymptotes(value(*point.at), factors, point)
    products: dict[By, Tensor] = {(i,): step for i, step in enumerate(point.steps)}
    terms, unknown = [], []
    for by, factor in factors.items():
        terms.append(_nan_at_infinity(by, factor, carried, point))
        for i in set(by):
            factor = factor.masked_fill(point.infinite[i], 0.0)
        repeats = prod([factorial(by.count(i)) for i in set(by)])
        if repeats > 1:
            factor = factor * (1 / repeats)
        if len(by) > 1:
            products[by] = products[by[:-1]] * point.steps[by[-1]]
        steep = ~torch.isfinite(factor)
        terms.append(products[by] * torch.where(steep, 0.0, factor))
        if len(by) <= _SIGNED:
            along = _total([point.steps[i] for i in dict.fromkeys(by)])
            if len(by) == 1 and (*by, *by) in factors:
                bend = factors[*by, *by]
                straight = steep & torch.isfinite(bend) & ~factor.isnan()
                terms.append(_line(factor, along, straight))
                turned = steep & (_sign(bend) * _sign(factor) > 0) & ~straight
                # 0 − 0 is +0, of which a root has slope ∞; −0 is not, and has −∞
                terms.append(_steep(len(by), -factor, 0.0 - along, turned))
                steep = steep & ~turned & ~straight
            terms.append(_steep(len(by), factor, along, steep))
        else:
            unknown.append(steep)
    if unknown:
        steep = reduce(torch.logical_or, unknown)
        d = torch.where(steep, _total(point.steps), 1.0)
        terms.append(torch.where(steep, nan_from(_SIGNED + 1, d), 0.0))
    return out, _total(terms)


def _with_asymptotes(out: Tensor, factors: Mapping[By, Tensor], point: _Point) -> tuple[Tensor, dict[By, Tensor]]:
    """Return the value; where an input is infinite, as slope · input if that is the value, or if that is NaN.

    The slope depends on the other inputs: it is expanded to first order. Where it is, by both inputs, comes second.
    """
    lines, anywhere = [], []
    carried: dict[By, Tensor] = {}
    for i, (x, a, infinite) in enumerate(zip(point.xs, point.at, point.infinite, strict=True)):
        turns: list[tuple[Tensor, Tensor]] = []
        fits = infinite & ((factors[i,] * a == out) | out.isnan())
        line = torch.where(_any_of(fits, factors[i,]), factors[i,], 0.0) * torch.where(_any_of(fits, x), x, 1.0)
        for j, step in enumerate(point.steps):
            by = (min(i, j), max(i, j))
            mixed = factors.get(by)
            if i != j and mixed is not None:
                grows = fits & ~point.infinite[j] & torch.isfinite(mixed) & (mixed * a == factors[j,])
                turns.append((grows, torch.where(grows, mixed, 0.0) * step.to(out.dtype)))
                carried[by] = carried[by] | grows if by in carried else grows
        if turns:
            grown = reduce(torch.logical_or, [grows for grows, _ in turns])
            slope = torch.where(grown, factors[i,], 0.0) + _total([turn for _, turn in turns])
            line = torch.where(grown, slope * torch.where(grown, x, 1.0), line)
        lines.append(torch.where(fits, line, 0.0))
        anywhere.append(fits)
    total = torch.where(out.isnan(), out, 0.0) + _total(lines)
    return torch.where(reduce(torch.logical_or, anywhere), total, out), carried


def _any_of(mask: Tensor, x: Tensor) -> Tensor:
    """Whether a mask is true anywhere that a tensor is broadcast to."""
    return mask if mask.shape == x.shape else mask.to(torch.int32).sum_to_size(x.shape) > 0


def _nan_at_infinity(by: By, factor: Tensor, carried: Mapping[By, Tensor], point: _Point) -> Tensor:
    """Return 0 whose derivatives are NaN from an order on where an input is infinite and the derivative is not carried.

    A line has any slope that is a number or infinite, and 0 for the higher derivatives.
    """
    infinite = reduce(torch.logical_or, [point.infinite[i] for i in set(by)])
    unknown = infinite & (factor.isnan() if len(by) == 1 else factor != 0)
    if by in carried:
        unknown = unknown & ~carried[by]
    near = [point.near(i) for i in dict.fromkeys(by)]
    return torch.where(unknown, nan_from(len(by), torch.where(unknown, _total(near), 1.0)), 0.0)


def _total(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


_SIGNED = 2
"""The order up to which an infinite derivative is infinite. Beyond, it makes all of a higher order NaN."""


def _steep(order: int, factor: Tensor, along: Tensor, steep: Tensor) -> Tensor:
    """Return 0 with the derivatives of a product of zeros and a factor that is not finite.

    It is a power of d = 0 that has an infinite derivative of the product's order, of the sign of the factor, and no
    lower one; where the factor is NaN, that derivative is. Elsewhere d is 1, so that no 0 · ∞ arises. The derivative
    after that is infinite too, of the other sign. Where it is to have the same one, as the derivatives of an
    exponential have, the power is one of −d.
    """
    d = torch.where(steep, along, 1.0)
    return torch.where(steep, _sign(factor) * d.pow(order - 0.5), 0.0)


def _line(slope: Tensor, along: Tensor, where: Tensor) -> Tensor:
    """Return 0 with a slope of ±∞ and no higher derivative, 0 · log(∞)."""
    d, steepest = torch.where(where, along, 0.0), torch.where(where, inf, 1.0).to(along.dtype)
    zero: Tensor = _sign(slope) * torch.special.xlogy(d, steepest)
    return zero


def _sign(x: Tensor) -> Tensor:
    """Return the sign of a number, 0 for NaN."""
    return torch.where(x > 0, 1.0, torch.where(x < 0, -1.0, 0.0)).to(x.dtype)


def nan_from(order: int, d: Tensor) -> Tensor:
    """Return 0 whose derivatives by d = 0 are 0 below an order, and NaN from there on."""
    return d.pow(order - 0.5) * 0.0


def _error_from(order: int, x: Tensor) -> Tensor:
    """Return 0 whose derivatives by x are 0 below an order; PyTorch raises an error for that one.

    A graph has native ops only, so one of these has to refuse. The derivative of `polygamma(n)` is `polygamma(n + 1)`,
    and n is a 64-bit integer, of which PyTorch refuses the negative ones: beyond 2⁶³ − 1 it is negative. The tensor is
    empty, so that nothing is computed, and its sum is 0.
    """
    if not x.numel():  # vmap has no rule for a batch of nothing
        return x.new_zeros(())
    zero: Tensor = torch.special.polygamma(_LAST_ORDER - (order - 1), x.unsqueeze(0)[:0]).sum()
    return zero


_LAST_ORDER = 2**63 - 1
"""Of a polygamma function: the next overflows to a negative number."""
