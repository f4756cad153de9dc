"""Roots of terms of one variable, to more digits than float64 has."""

from __future__ import annotations

import numpy as np

from pullback.stable.precision import Ball, ball_type, precision, working_precision
from pullback.stable.program import Program
from pullback.stable.term import Term

_PRECISIONS = (1, 2, 4, 8, 16, 32)  # times the first
_ROOT = 2.0**-400  # a value that small, of unknown sign, counts as 0
_TINY = 2.0**-1074  # where the root is 0, no relative tolerance is met
_SHRINKS = 2.0**-20  # how much smaller a continuous term becomes at least, towards its root


def root_between(term: Term, name: str, a: float, b: float, bits: int = 120) -> tuple[float, float]:
    """Return a root of a term of one variable between two points of opposite sign, by bisection.

    Args:
        term: the term.
        name: its variable.
        a, b: the two points; if the term is 0 at one of them, that is the root.
        bits: how many relative bits of the root to find.

    Returns:
        The root as a sum of two float64 numbers, the first rounded to float32.

    Raises:
        ValueError: if the signs are not opposite or not known, or the sign changes at a pole or a jump.
        RunnerError: if python-flint is not installed.
    """
    function, ball = _Signed(term, name), ball_type()
    with working_precision() as set_precision:
        set_precision(2 * bits)
        root = function.bisect(ball(a), ball(b), 2.0**-bits)
        high = _short(float(root))
        for rounded in (high, float(root)):
            if _sign(function.at(ball(rounded))) == 0:
                root = ball(rounded)
        return high + 0.0, float(root - high) + 0.0  # no −0


def _short(value: float) -> float:
    """Return a number rounded to float32, or itself where it is beyond its range."""
    return float(np.float32(value)) if abs(value) < float(np.finfo(np.float32).max) else value


class _Signed:
    """A term as a function of one variable, evaluated until its sign is known."""

    def __init__(self, term: Term, name: str) -> None:
        self.term, self.program, self.name = term, Program([term]), name

    def at(self, x: Ball) -> Ball:
        bits = precision()
        with working_precision() as set_precision:
            for times in _PRECISIONS:
                set_precision(bits * times)
                value: Ball = self.program.at({self.name: x})[self.program.roots[0]]
                if value > 0 or value < 0 or value.abs_upper() < _ROOT:
                    return value
        raise ValueError(f"no precision tells the sign of {self.term} at {self.name} = {float(x)!r}.")

    def bisect(self, a: Ball, b: Ball, tolerance: float) -> Ball:
        """Return a root between two exact points, within a relative tolerance."""
        at_a, at_b = self.at(a), self.at(b)
        small = _SHRINKS * (abs(at_a) + abs(at_b))
        while (sign := _sign(at_a) * _sign(at_b)) < 0 and abs(b - a) > tolerance * abs(a) + _TINY:
            middle = ((a + b) / 2).mid()
            value = self.at(middle)
            if _sign(value) * _sign(at_a) > 0:
                a, at_a = middle, value
            else:
                b, at_b = middle, value
        if sign > 0:
            raise ValueError(f"{self.term} has the same sign at both ends.")
        if sign == 0:
            return a if _sign(at_a) == 0 else b
        if not abs(at_a) + abs(at_b) < small:
            raise ValueError(f"{self.term} changes its sign at {float(a)!r} without being 0 there.")
        return a


def _sign(value: Ball) -> int:
    return 1 if value > 0 else -1 if value < 0 else 0
