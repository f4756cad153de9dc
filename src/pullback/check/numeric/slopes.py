"""Numeric derivatives of an elementwise subject at one point, from either side, with error bars."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.derivative.oracle import SIGNIFICANT, differentiate
from pullback.check.numeric.elementwise import Elementwise
from pullback.check.numeric.onset import single
from pullback.check.trial import Raised, as_real

_STEP = 2.0**-10
"""The first step of the ladder is about a sixteenth of this, relative to the point, or to 1 if that is larger."""
_TELLING = 1e-3
"""An estimate with a wider bar than that, relative to the larger of the slope and 1, decides nothing."""


@dataclass(frozen=True, slots=True)
class NumericSlope:
    """A numeric derivative.

    Attributes:
        low, high: the one-sided derivatives; one value where there is no kink.
        bar: their absolute uncertainty.
        kink: whether they differ.
    """

    low: float
    high: float
    bar: float
    kink: bool

    def nearest(self, slope: float) -> float:
        """Return the derivative, at a kink the one nearest to a number."""
        return min(max(slope, self.low), self.high)

    def accepts(self, slope: float) -> bool:
        """Whether a number is one of the derivatives, within the error bars."""
        slack = SIGNIFICANT * self.bar + 1e-6 * max(abs(self.low), abs(self.high))
        return self.low - slack <= slope <= self.high + slack


def slope_at(function: Elementwise, by: str, point: dict[str, float], step: float = _STEP) -> NumericSlope | None:
    """Return the derivative of the value by one input at a point, in float64; `None` if it is undecided."""
    scale = step * max(1.0, abs(point[by]))

    def curve(t: float) -> Tensor:
        return as_real(function.values(torch.float64, single({**point, by: point[by] + t * scale})))

    try:
        found = differentiate(curve)
    except Raised:
        return None
    low, high, bar = (float(t[0]) / scale for t in (found.low, found.high, found.bar))
    if not bool(found.valid[0]) or bar > _TELLING * max(1.0, abs(low), abs(high)):
        return None
    return NumericSlope(low, high, bar, bool(found.kink[0]))
