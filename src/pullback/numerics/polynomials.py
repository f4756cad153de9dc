"""Polynomials fitted to exact values where every formula cancels: at zeros and at removable singularities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from pullback.numerics.oracle import exact
from pullback.numerics.term import POLY, Term, const, substitute, var

_NODES = 49
_DEGREES = (1, 2, 3, 4, 5, 6, 8, 10, 12)
_TOLERANCE = {torch.float32: 2.0**-26, torch.float64: 2.0**-32}
"""Relative error of the fit, by the type that computes: below a rounding of float32, or well below it."""


@dataclass(frozen=True, slots=True)
class Poly:
    """t^power · P(u) with t = (x − centre) − rest, and u = t² if the function is even or odd about the centre, else t.

    The constant of P carries more digits than the type has: `tail` is what its rounding left.

    Attributes:
        coefficients: of P, from the constant up.
        power: the order of the zero at the centre; negative for a pole.
        even: whether u = t².
        centre, rest: the centre as a sum of two floats.
    """

    coefficients: tuple[float, ...]
    power: int
    even: bool
    centre: float = 0.0
    rest: float = 0.0
    tail: float = 0.0

    def run(self, x: Tensor) -> Tensor:
        """Evaluate by Horner's rule."""
        t = x if self.centre == 0.0 and self.rest == 0.0 else (x - self.centre) - self.rest
        u = t * t if self.even else t
        value = torch.full_like(t, self.coefficients[-1])
        for c in self.coefficients[-2:0:-1]:
            value = value * u + c
        if len(self.coefficients) > 1:
            value = (value * u + self.tail) + self.coefficients[0]
        for _ in range(self.power):
            value = value * t
        return value

    @property
    def cost(self) -> float:
        """About how many additions it takes."""
        return 2.0 * len(self.coefficients) + self.power + 2 * (self.centre != 0)

    def __str__(self) -> str:
        centre = self.centre if self.rest == 0.0 else f"{self.centre!r} + {self.rest!r}"
        parity = "even" if self.even else "full"
        return f"poly[{self.power}, {parity}, {centre}; {', '.join(map(repr, self.coefficients))} + {self.tail!r}]"


def fits(
    target: Term, name: str, centre: tuple[float, float], radii: Sequence[float], dtype: torch.dtype
) -> Iterator[Term]:
    """Yield polynomials that agree with a univariate term about a centre to a rounding of `dtype`, for each radius."""
    middle = const(Fraction(centre[0]) + Fraction(centre[1]))
    shifted = substitute(target, {var(name): Term("add", (middle, var("t")))})
    shape = _shape(shifted)
    if shape is None:
        return
    power, even = shape
    nodes = np.cos(np.pi * (np.arange(_NODES) + 0.5) / _NODES)
    for radius in radii:
        t = radius * nodes
        value = exact([shifted], {"t": t})[0].high
        good = np.isfinite(value) & (value != 0) & (np.abs(t) > radius * 1e-6)
        if good.sum() < _NODES - 6:
            continue
        found = _fit(t[good], value[good], power, even, radius, dtype)
        if found is not None:
            tail, *coefficients = found
            poly = Poly(tuple(coefficients), power, even, *centre, tail)
            yield Term(POLY, (var(name),), poly)


def _shape(shifted: Term) -> tuple[int, bool] | None:
    """Return the order of the zero at t = 0 and whether the rest is even in t; `None` where there is no order."""
    t = np.array([2.0**-60, 2.0**-61, -(2.0**-60), 0.375, -0.375]) * 2.0**-6
    value = exact([shifted], {"t": t})[0].high
    if not np.isfinite(value).all() or (value == 0).any():
        return None
    order = np.log2(abs(value[0] / value[1]))
    power = round(float(order))
    if abs(order - power) > 1e-3 or not 0 <= power <= 6:
        return None
    mirrored = value[3] / value[4] * (-1) ** power
    return power, bool(abs(mirrored - 1) < 1e-13)


def _fit(
    t: np.ndarray, value: np.ndarray, power: int, even: bool, radius: float, dtype: torch.dtype
) -> tuple[float, ...] | None:
    """Return the tail and the coefficients of the lowest degree that is good enough: least squares, relative errors."""
    u = t * t if even else t
    unit = radius * radius if even else radius
    with np.errstate(all="ignore"):
        y = value / t**power
    for degree in _DEGREES:
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
            if j == 0:
                tail = float(torch.tensor(solution[0] - rounded, dtype=torch.float64).to(dtype))
                rounded += tail
            made.append(rounded)
            target = target - columns[:, j] * (rounded * scale)
        if np.abs(target).max() < _TOLERANCE[dtype] and np.isfinite(made).all():
            return tail, made[0] - tail, *made[1:]
    return None
