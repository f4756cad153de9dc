"""Balls read as float64: which are settled, and their values as sums of two numbers."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

import numpy as np

from pullback.stable.precision import Ball, ball_type
from pullback.stable.program import Column

BITS = 70
"""Relative accuracy, in bits, that settles a value."""

NEGLIGIBLE = 2.0**-400
"""A value known to be smaller is settled, unless more is asked for: as 0 if its digits are not known."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Balls rounded to sums of two float64 numbers.

    Attributes:
        settled: which balls are tight enough.
        high: for these the value rounded to float64, ±inf beyond its range; 0 for the others.
        low: for these the value less `high`, where it is finite and not negligible; else 0.
        nan: which balls are nan, without any information.
    """

    settled: np.ndarray
    high: np.ndarray
    low: np.ndarray
    nan: np.ndarray


def read(balls: Column, negligible: float = NEGLIGIBLE) -> Reading:
    """Round balls, at a working precision of at least 96 bits.

    Args:
        balls: the balls.
        negligible: a value known to be smaller is settled, as 0 if its digits are unknown.
    """
    count, ball = len(balls), ball_type()
    settled = np.fromiter(map(ball.rel_accuracy_bits, balls), np.int64, count) >= BITS
    settled &= np.fromiter(map(ball.is_finite, balls), bool, count)
    high, low = np.zeros(count), np.zeros(count)
    middles = list(map(ball.mid, balls[settled]))
    high[settled] = list(map(float, middles))
    rests = map(operator.sub, middles, map(ball, high[settled].tolist()))
    low[settled] = list(map(float, rests))
    low[~(np.abs(high) >= negligible) | np.isinf(high)] = 0.0
    nan = np.zeros(count, bool)
    for i in np.flatnonzero(~settled):
        high[i], settled[i] = _rough(balls[i], negligible)
        nan[i] = balls[i].is_nan()
    return Reading(settled, high, low, nan)


def _rough(ball: Ball, negligible: float) -> tuple[float, bool]:
    """Return the value of a wide ball, and whether it is settled all the same: too small or too large to matter."""
    if not ball.is_finite():
        return 0.0, False
    if ball.abs_upper() < negligible:
        return 0.0, True
    beyond = math.isinf(float(ball.abs_lower()))
    return (math.copysign(math.inf, float(ball.mid())) if beyond else 0.0), beyond
