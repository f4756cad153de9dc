"""Polynomials fitted to exact values where every formula cancels: at zeros, removable singularities, infinity.

About a centre c, with t = x − c, a target is t^p P(t), with p the order of its zero or pole and P in t² if it is even
or odd about c. P minimises the relative error at Chebyshev nodes, in the sense of least squares. With equal weights
that is nearly a truncated Chebyshev series, whose largest error is at most 4 + (4/π²) log(n + 1) times the least that
degree n allows, 5.1 times for n = 12 (Trefethen, "Approximation theory and approximation practice", chapter 16).
Its coefficients are rounded to the working dtype one by one, and after each the remaining ones are fitted anew, to
absorb the rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
import torch

from pullback.stable.oracle.values import exact
from pullback.stable.term import POLY, Poly, Term, const, substitute, var

_NODES = 49
_DEGREES = (1, 2, 3, 4, 5, 6, 8, 10, 12)
_TOLERANCE = {torch.float32: 2.0**-26, torch.float64: 2.0**-32}
"""Relative error of the fit, by the type that computes: a quarter of a rounding of float32, 2⁻²⁴, or 2⁻⁸ of it."""


def fits(
    target: Term, name: str, centre: tuple[float, float], radii: Sequence[float], dtype: torch.dtype
) -> Iterator[Term]:
    """Yield polynomials that agree with a univariate term about a centre to a rounding of `dtype`, for each radius."""
    middle = const(Fraction(centre[0]) + Fraction(centre[1]))
    shifted = substitute(target, {var(name): Term("add", (middle, _T))})
    nodes = np.cos(np.pi * (np.arange(_NODES) + 0.5) / _NODES)
    for poly in _polys(shifted, centre, radii, nodes, dtype):
        yield Term(POLY, (var(name),), poly)


def tails(target: Term, name: str, side: int, radii: Sequence[float], dtype: torch.dtype) -> Iterator[Term]:
    """Yield polynomials in 1/x that agree with a univariate term beyond the inverse of each radius, on one side."""
    inverted = substitute(target, {var(name): Term("div", (const(1), _T))})
    nodes = side * (1 + np.cos(np.pi * (np.arange(_NODES) + 0.5) / _NODES)) / 2
    for poly in _polys(inverted, (0.0, 0.0), radii, nodes, dtype):
        yield Term(POLY, (Term("div", (const(1), var(name))),), poly)


_T = var("t")


def _polys(
    shifted: Term, centre: tuple[float, float], radii: Sequence[float], nodes: np.ndarray, dtype: torch.dtype
) -> Iterator[Poly]:
    """Yield polynomials in t, from values at nodes times each radius."""
    shape = _shape(shifted, nodes)
    if shape is None:
        return
    power, even = shape
    for radius in radii:
        t = radius * nodes
        value = exact([shifted], {"t": t})[0].high
        good = np.isfinite(value) & (value != 0) & (np.abs(t) > radius * 1e-6)
        if good.sum() < _NODES - 6:
            continue
        found = _fit(t[good], value[good], power, even, radius, dtype)
        if found is not None:
            tail, *coefficients = found
            yield Poly(tuple(coefficients), power, even, *centre, tail)


def _shape(shifted: Term, nodes: np.ndarray) -> tuple[int, bool] | None:
    """Order of the zero at t = 0, negative for a pole, and whether the rest is even in t.

    Return `None` if there is no order. Parity is tested only if nodes lie on both sides.
    """
    side = 1.0 if nodes.max() > 0 else -1.0
    both = nodes.min() < 0 < nodes.max()
    t = np.array([2.0**-60, 2.0**-61, *([-(2.0**-60), 0.375, -0.375] if both else [])]) * side * 2.0**-6
    value = exact([shifted], {"t": t})[0].high
    if not np.isfinite(value).all() or (value == 0).any():
        return None
    # f(t) ≈ C tᵖ at t = 2⁻⁶⁶ and half of it, so their quotient is 2ᵖ
    order = np.log2(abs(value[0] / value[1]))
    power = round(float(order))
    if abs(order - power) > 1e-3 or not -3 <= power <= 6:
        return None
    if not both:
        return power, False
    # f(t) / tᵖ is even if f(t) / f(−t) = (−1)ᵖ; tested far from 0, where odd terms would show
    mirrored = value[3] / value[4] * (-1) ** power
    return power, bool(abs(mirrored - 1) < 1e-13)


def _fit(
    t: np.ndarray, value: np.ndarray, power: int, even: bool, radius: float, dtype: torch.dtype
) -> tuple[float, ...] | None:
    """Tail and the coefficients of the lowest degree that is good enough.

    They minimise the relative errors in the sense of least squares: Σᵢ (P(uᵢ) / yᵢ − 1)² with y = value / t^power.
    """
    # t = r cos θ with equidistant θ, so t² = r² (1 + cos 2θ)/2 is distributed as Chebyshev nodes of [0, r²] are
    u = t * t if even else t
    unit = radius * radius if even else radius
    with np.errstate(all="ignore"):
        y = value / t**power
    for degree in _DEGREES:
        # In u / radius the columns are of one size, and divided by y the residuals are relative errors. The condition
        # is up to 8·10⁸ at degree 12, of even functions and tails. That is an error of the coefficients and not of the
        # fit: what `lstsq` returns is the solution for columns that differ by a few roundings.
        columns = np.vander(u / unit, degree + 1, increasing=True) / y[:, None]
        target = np.ones_like(y)
        made: list[float] = []
        # each coefficient is rounded in turn, and the later ones make up for it
        for j in range(degree + 1):
            solution = np.linalg.lstsq(columns[:, j:], target, rcond=None)[0]
            scale = unit**j
            if scale == 0.0 or not np.isfinite(solution[0] / scale):
                return None
            rounded = float(torch.tensor(solution[0] / scale, dtype=torch.float64).to(dtype))
            if j == 0:  # solution − rounded is exact, and rounded + tail has at most 53 bits
                tail = float(torch.tensor(solution[0] - rounded, dtype=torch.float64).to(dtype))
                rounded += tail
            made.append(rounded)
            target = target - columns[:, j] * (rounded * scale)
        if np.abs(target).max() < _TOLERANCE[dtype] and np.isfinite(made).all():
            return tail, made[0] - tail, *made[1:]
    return None
