"""Functions with given derivatives, in PyTorch's ops: the composite form of an op whose derivatives have stable forms.

With `a` a copy of `x` whose gradient is stopped and `d = x − a`, the Taylor polynomial s = d f₁(a) + d² f₂(a) / 2 + …
is 0, and its derivatives are f₁(a), f₂(a), …: of dᵏ/k! at d = 0 the k-th derivative is 1, and every other is 0. As for
a relaxed op, `f(a) − (stop_gradient(s) − s)` then has the value f(a), bit for bit, and these derivatives, in every
transform. The bits need the two differences in this order: 0 − 0 is +0, and −0 − (+0) is −0, but −0 + (+0) is +0. With
several inputs there is a term for each partial derivative: that by x n times and by y m times has the factor
dₓⁿ d_yᵐ / (n! m!).

A polynomial of order n has no derivative beyond n: that would be 0, silently. So the next one is an error
(`_error_from`). No composition of finitely many ops is right in all orders: a Taylor series has infinitely many
terms.

Where x is ±∞, d is not defined. There f(x) is f₁(a) x if these are equal, as for a function that grows like its
asymptote, or if f(a) is NaN: this has the derivative f₁(a), and 0 for the higher ones. Otherwise the derivatives by an
infinite x are 0: those of a function with a finite limit. A derivative with another value makes all derivatives of its
order and above NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import factorial, prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pullback.guards import stop_gradient
from pullback.stable.formats import working

Function = Callable[..., Tensor]
By = tuple[int, ...]


def first_order(value: Function, slopes: Sequence[Function]) -> Function:
    """Function for graphs of a first derivative in plain eager mode; it has no other."""

    def function(*xs: Tensor) -> Tensor:
        out: Tensor = _Sloped.apply(value, slopes, *xs)  # type: ignore[no-untyped-call]
        return out

    return function


class _Sloped(torch.autograd.Function):
    """A value with given slopes.

    Its shape is that of all inputs together, also if the value depends on some alone: a slope may have that shape, and
    its product with a smaller cotangent would be summed over elements that the value has once.
    """

    @staticmethod
    def forward(ctx: Any, value: Function, slopes: Sequence[Function], *xs: Tensor) -> Tensor:
        ctx.slopes = slopes
        ctx.save_for_backward(*xs)
        out, shape = value(*xs), _broadcast(*xs)
        return out if out.shape == shape else out.expand(shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        xs = ctx.saved_tensors
        wanted = zip(ctx.slopes, xs, ctx.needs_input_grad[2:], strict=True)
        return (None, None, *(_pulled_back(g, slope(*xs), x) if needed else None for slope, x, needed in wanted))


def gradients(slopes: Sequence[Function]) -> Callable[..., list[Tensor]]:
    """Gradient of a function whose slopes are given: of its inputs and a cotangent, one for each input."""

    def function(*given: Tensor) -> list[Tensor]:
        *xs, g = given
        return [_pulled_back(g, slope(*xs), x) for slope, x in zip(slopes, xs, strict=True)]

    return function


def _pulled_back(g: Tensor, slope: Tensor, x: Tensor) -> Tensor:
    """Cotangent of a tensor that may be broadcast.

    The cotangent is summed before it is multiplied by a slope that all elements share: (Σ gᵢ) · ∞ differs from
    Σ (gᵢ · ∞), which is NaN if the gᵢ have two signs.
    """
    if g.shape == x.shape:
        return g * slope
    shape = _broadcast(slope, x)
    return (g.to(working(g.dtype)).sum_to_size(shape) * slope).sum_to_size(x.shape).to(x.dtype)


def _in_sum_dtype(xs: Sequence[Tensor]) -> list[Tensor]:
    """Tensors, those that are broadcast in the dtype in which `_pulled_back` sums cotangents."""
    shape = _broadcast(*xs)
    return [x if x.shape == shape else x.to(working(x.dtype)) for x in xs]


def _broadcast(*xs: Tensor) -> torch.Size:
    """Shape that tensors are broadcast to; `torch.broadcast_shapes` imports SymPy."""
    shape: torch.Size = torch.broadcast_tensors(*xs)[0].shape
    return shape


def jet(value: Function, partials: Mapping[By, Function]) -> Function:
    """Composite form with the given derivatives; one of higher order raises a RuntimeError of PyTorch.

    Args:
        value: the value, as a function of the inputs.
        partials: all partial derivatives up to some order, by positions of inputs in ascending order.
    """
    order = max(map(len, partials))

    def function(*xs: Tensor) -> Tensor:
        point = _ExpansionPoint(xs)
        out, s = _expanded(value, partials, point)
        s = s + _error_from(order + 1, _sum_of(point.steps))
        return out - (stop_gradient(s) - s).to(out.dtype)

    return function


class _ExpansionPoint:
    """Where a function is expanded.

    Attributes:
        xs: the inputs.
        at: their values.
        beyond: where these are infinite or NaN.
        steps: 0 with derivative 1, and with derivative 0 where infinite or NaN.
    """

    def __init__(self, xs: Sequence[Tensor]) -> None:
        self.xs = xs
        self.at = [stop_gradient(x) for x in xs]
        self.beyond = [~torch.isfinite(a) for a in self.at]
        pairs = zip(_in_sum_dtype(xs), _in_sum_dtype(self.at), self.beyond, strict=True)
        self.steps = [torch.where(beyond, 0.0, x - a) for x, a, beyond in pairs]

    def near(self, i: int) -> Tensor:
        """Step of an input, and 1/x² where that is infinite or NaN: a function of x, too.

        At ±∞ the value of 1/x² is 0, as that of a step is, but its derivative −2/x³ is 0 and not 1.
        """
        inverse = torch.where(self.beyond[i], self.xs[i], 1.0).pow(-2)
        return torch.where(self.beyond[i], inverse, self.steps[i])


def _expanded(value: Function, partials: Mapping[By, Function], point: _ExpansionPoint) -> tuple[Tensor, Tensor]:
    """Value, with derivatives where inputs are infinite, and the Taylor polynomial, which has the others.

    A step meets the factor before it meets the others: the backward then multiplies the cotangent by 0 first, and not
    by the factor of a higher derivative, with which it may overflow.
    """
    factors = {by: partial(*point.at) for by, partial in partials.items()}
    out, carried = _with_asymptotes(value(*point.at), factors, point)
    products: dict[By, Tensor] = {(i,): step for i, step in enumerate(point.steps)}
    terms, unknown = [], []
    for by, factor in factors.items():
        terms.append(_nan_at_infinity(by, factor, carried, point))
        for i in set(by):
            factor = factor.masked_fill(point.beyond[i], 0.0)
        repeats = prod([factorial(by.count(i)) for i in set(by)])
        if repeats > 1:
            factor = factor * (1 / repeats)
        step, rest = point.steps[by[-1]], products.get(by[:-1])
        if rest is not None:
            products[by] = rest * step
        term = step * torch.where(torch.isfinite(factor), factor, 0.0)
        terms.append(term if rest is None else rest * term)
        if len(by) <= _SIGNED:
            terms.append(_steep(factor, step, rest))
            along = _sum_of([point.steps[i] for i in dict.fromkeys(by)])
            terms.append(_nan_where(factor.isnan(), len(by), along))
        else:
            unknown.append(~torch.isfinite(factor))
    if unknown:
        terms.append(_nan_where(reduce(torch.logical_or, unknown), _SIGNED + 1, _sum_of(point.steps)))
    return out, _sum_of(terms)


def _with_asymptotes(
    out: Tensor, factors: Mapping[By, Tensor], point: _ExpansionPoint
) -> tuple[Tensor, dict[By, Tensor]]:
    """Value; where an input is infinite, as slope · input if that is the value, or if that is NaN.

    The slope depends on the other inputs: it is expanded to first order. Where it is, by both inputs, comes second.
    With f = f₁(y) x, the derivative by y is f₁₂ x: a mixed derivative is carried where it fits that one.
    """
    lines, anywhere = [], []
    carried: dict[By, Tensor] = {}
    for i, (x, a, beyond) in enumerate(zip(point.xs, point.at, point.beyond, strict=True)):
        mixed_steps: list[tuple[Tensor, Tensor]] = []
        fits = beyond & ((factors[i,] * a == out) | out.isnan())
        for j, step in enumerate(point.steps):
            by = (min(i, j), max(i, j))
            mixed = factors.get(by)
            if i != j and mixed is not None:
                grows = fits & ~point.beyond[j] & torch.isfinite(mixed) & _equal(mixed * a, factors[j,])
                mixed_steps.append((grows, torch.where(grows, mixed, 0.0) * step.to(out.dtype)))
                carried[by] = carried[by] | grows if by in carried else grows
        grown = reduce(torch.logical_or, [grows for grows, _ in mixed_steps]) if mixed_steps else None
        plain = fits if grown is None else fits & ~grown
        line = torch.where(_any_of(plain, factors[i,]), factors[i,], 0.0) * torch.where(_any_of(plain, x), x, 1.0)
        if grown is not None:
            slope = torch.where(grown, factors[i,], 0.0) + _sum_of([mixed_step for _, mixed_step in mixed_steps])
            line = torch.where(grown, slope * torch.where(grown, x, 1.0), line)
        lines.append(torch.where(fits, line, 0.0))
        anywhere.append(fits)
    total = torch.where(out.isnan(), out, 0.0) + _sum_of(lines)
    return torch.where(reduce(torch.logical_or, anywhere), total, out), carried


def _equal(x: Tensor, y: Tensor) -> Tensor:
    """Where two tensors are equal, or both NaN."""
    return (x == y) | (x.isnan() & y.isnan())


def _any_of(mask: Tensor, x: Tensor) -> Tensor:
    """Whether a mask is true anywhere that a tensor is broadcast to."""
    return mask if mask.shape == x.shape else mask.to(torch.int32).sum_to_size(x.shape) > 0


def _nan_at_infinity(by: By, factor: Tensor, carried: Mapping[By, Tensor], point: _ExpansionPoint) -> Tensor:
    """Zero whose derivatives are NaN from an order on, where an input is infinite and the asymptote lacks them.

    A line has any slope that is a number or infinite, and 0 for the higher derivatives.
    """
    beyond = reduce(torch.logical_or, [point.beyond[i] for i in set(by)])
    unknown = beyond & (factor.isnan() if len(by) == 1 else factor != 0)
    if by in carried:
        unknown = unknown & ~carried[by]
    if len(set(by)) > 1:  # a value that is NaN in one input alone leaves the slopes by the others unchanged
        unknown = unknown & ~reduce(torch.logical_or, [point.at[i].isnan() for i in set(by)])
    return _nan_where(unknown, len(by), _sum_of([point.near(i) for i in dict.fromkeys(by)]))


def _sum_of(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


_SIGNED = 2
"""The order up to which an infinite derivative is infinite. Beyond, it makes all of a higher order NaN."""


def _steep(factor: Tensor, step: Tensor, rest: Tensor | None) -> Tensor:
    """Zero with the derivatives of a product of zeros and a factor where that is infinite: 0 · ∞ would be NaN.

    ∞ is replaced by two finite numbers whose product overflows. One multiplies each of two zeros, or both multiply the
    only one: a derivative of the product has both, any other a 0.
    """
    dtype = working(step.dtype)
    infinite = torch.isinf(factor)
    # max^0.75 is finite, and its square, max^1.5, overflows: with the sign of `other` to the right infinity
    one = factor.to(dtype).masked_fill(~infinite, 0.0).masked_fill(infinite, torch.finfo(dtype).max ** 0.75)
    other = torch.where(factor > 0, one, -one)
    product = step.to(dtype) * one
    return product * (other if rest is None else rest.to(dtype) * other)


def _nan_where(mask: Tensor, order: int, d: Tensor) -> Tensor:
    """Zero whose derivatives by d = 0 are NaN from an order on where a mask is true."""
    return torch.where(mask, nan_from(order, torch.where(mask, d, 1.0)), 0.0)


def nan_from(order: int, d: Tensor) -> Tensor:
    """Zero whose derivatives by d = 0 are 0 below an order, and NaN from there on.

    ∞ − ∞, and not ∞ · 0: forward mode makes float64 of a single number times one of Python.
    """
    # The k-th derivative of d^(n − ½) is c d^(n − ½ − k): 0 at d = 0 for k < n, infinite from k = n on. The difference
    # of two equal infinities is NaN.
    infinite = d.pow(order - 0.5)
    return infinite - infinite


def _error_from(order: int, x: Tensor) -> Tensor:
    """Zero whose derivatives by x are 0 below an order; at that order PyTorch raises an error.

    A graph has only PyTorch's ops, so one of these has to refuse. The derivative of `polygamma(n)` is
    `polygamma(n + 1)`, and n is a 64-bit integer, which PyTorch refuses if it is negative: beyond 2⁶³ − 1 it is. The
    tensor is empty, so that nothing is computed, and its sum is 0.
    """
    if not x.numel():  # vmap has no rule for a batch of nothing
        return x.new_zeros(())
    zero: Tensor = torch.special.polygamma(_LAST_ORDER - (order - 1), x.unsqueeze(0)[:0]).sum()
    return zero


_LAST_ORDER = 2**63 - 1
"""Largest order of a polygamma function: the next overflows to a negative number."""
