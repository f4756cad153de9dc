"""Polynomials about a centre, as parts of terms."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Poly:
    """t^power · P(u) with t = (x − centre) − rest, and u = t² if the function is even or odd about the centre, else t.

    The constant of P carries more digits than the type has: `tail` is its rounding error.

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
        """Evaluate t^power · (c₀ + (tail + u (c₁ + u (c₂ + …)))) by Horner's rule."""
        t = x if self.centre == 0.0 and self.rest == 0.0 else (x - self.centre) - self.rest
        u = t * t if self.even else t
        value = torch.full_like(t, self.coefficients[-1])
        for c in self.coefficients[-2:0:-1]:
            value = value * u + c
        if len(self.coefficients) > 1:
            value = (value * u + self.tail) + self.coefficients[0]
        for _ in range(abs(self.power)):
            value = value * t if self.power > 0 else value / t
        return value

    @property
    def cost(self) -> float:
        """About how many additions it takes."""
        return 2.0 * len(self.coefficients) + abs(self.power) + 2 * (self.centre != 0)

    @property
    def numbers(self) -> tuple[float, ...]:
        """All of it as numbers: power, even, centre, rest, tail, coefficients."""
        return (self.power, int(self.even), self.centre, self.rest, self.tail, *self.coefficients)

    @classmethod
    def of_numbers(
        cls, power: float, even: float, centre: float, rest: float, tail: float, *coefficients: float
    ) -> Poly:
        """Return the polynomial of these numbers."""
        return cls(tuple(map(float, coefficients)), int(power), bool(even), float(centre), float(rest), float(tail))
