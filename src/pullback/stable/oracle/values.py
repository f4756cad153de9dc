"""Exact values and roots of terms.

Values are enclosed at 96 bits, and again at up to 8192 bits where the enclosure is too wide (`PRECISIONS`); where that
is not enough a value counts as undecided, never as wrong. Where a formula has a hole (0/0, 0·log(0)) it is given its
limit. Roots are found by bisection between points of opposite sign, with the sign proved by balls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pullback.stable.oracle.balls import (
    NEGLIGIBLE,
    Ball,
    BallProgram,
    Column,
    ball_type,
    precision,
    round_balls,
    working_precision,
)
from pullback.stable.oracle.balls import straight_line as straight_line
from pullback.stable.oracle.limits import NoValue, limit, why_no_value
from pullback.stable.term import Term

PRECISIONS = (96, 192, 480, 1024, 2048, 4096, 8192)
"""Working precisions, in bits, until a value is settled.

480: the ball of a difference of ordinary numbers has a radius of about 2⁻ᵖ at p bits, so one that is 0 is below
`NEGLIGIBLE`, 2⁻⁴⁰⁰, from 400 bits and some on.
"""

_HELD = 2**26
"""Bits of balls that are held at once: points are taken in blocks."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The exact values of one term at n points.

    Attributes:
        high: the exact value, rounded; ±inf where it is beyond float64's range; nan where the formula has no value
            (log of a negative number, a pole, 0/0 without a limit) and where it is undecided.
        low: the exact value less `high`: the two together have at least 70 relative bits. 0 where the value is
            negligible or infinite.
        undecided: where precision ran out.
    """

    high: np.ndarray
    low: np.ndarray
    undecided: np.ndarray


def exact(roots: Sequence[Term], points: Mapping[str, np.ndarray], negligible: float = NEGLIGIBLE) -> list[Truth]:
    """Exact values of some terms.

    Args:
        roots: the terms; a condition has the values 1 and 0.
        points: the values of every variable, float64, all of one length. No term has a value at infinity or nan.
        negligible: below it no digits of a value are needed. The default suits every format but float64.

    Returns:
        Of every term its values. Where a formula has a hole (0/0, 0·log(0)) it is given its limit, if there is one
        (`limits`).

    Raises:
        FormulaError: for an op that is not in the table.
        RunnerError: if python-flint is not installed.
    """
    answers = _Answers(roots, points, negligible)
    with working_precision() as set_precision:
        for bits in PRECISIONS:
            set_precision(bits)
            answers.settle(bits)
    answers.fill_holes()
    return [Truth(*parts) for parts in zip(answers.high, answers.low, answers.open, strict=True)]


class _Answers:
    """Values of some terms as far as known: a row per term, a column per point.

    Attributes:
        high, low: as in `Truth`.
        open: where the value is not settled.
        holes: (row, column) where a limit may give the value.
    """

    def __init__(self, roots: Sequence[Term], points: Mapping[str, np.ndarray], negligible: float) -> None:
        self.program, self.points, self._negligible = BallProgram(roots), points, negligible
        count = len(next(iter(points.values())))
        self.balls: dict[str, Column] = {
            name: np.fromiter(map(ball_type(), values.tolist()), object, count) for name, values in points.items()
        }
        self.high = np.full((len(roots), count), np.nan)
        self.low = np.zeros((len(roots), count))
        self.open = np.tile(np.all([np.isfinite(v) for v in points.values()], axis=0), (len(roots), 1))
        self.holes: list[tuple[int, int]] = []

    def settle(self, bits: int) -> None:
        """Evaluate the open points at the current working precision, a number of bits, and store the settled values."""
        waiting = np.flatnonzero(self.open.any(0))
        size = max(8, _HELD // (bits * len(self.program.terms)))
        for block in np.split(waiting, range(size, len(waiting), size)):
            wanted = self.open[:, block]
            columns = self.program.columns({name: balls[block] for name, balls in self.balls.items()}, wanted)
            nameless = np.zeros_like(wanted)
            for row, slot in enumerate(self.program.roots):
                some = np.flatnonzero(wanted[row])
                nameless[row, some] = self._write(row, block[some], _as_balls(columns[slot][some]))
            for place in np.flatnonzero(nameless.any(0)):
                found = why_no_value(self.program, [column[place] for column in columns])
                for row in np.flatnonzero(nameless[:, place]).tolist():
                    self._close(row, int(block[place]), found[self.program.roots[row]])

    def _write(self, row: int, at: np.ndarray, balls: Column) -> np.ndarray:
        """Store settled values; return which of the others are nan."""
        reading = round_balls(balls, self._negligible)
        self.high[row, at[reading.settled]] = reading.high[reading.settled]
        self.low[row, at[reading.settled]] = reading.low[reading.settled]
        self.open[row, at[reading.settled]] = False
        return reading.nan

    def _close(self, row: int, point: int, lack: NoValue | None) -> None:
        if lack in (NoValue.OUTSIDE, NoValue.SINGULAR):
            self.open[row, point] = False
        if lack is NoValue.SINGULAR:
            self.holes.append((row, point))

    def fill_holes(self) -> None:
        """Fill in the limits where a formula has a hole."""
        for row, point in self.holes:
            at = {name: float(values[point]) for name, values in self.points.items()}
            found = limit(self.program.terms[self.program.roots[row]], at)
            if isinstance(found, NoValue):
                self.open[row, point] = found is NoValue.UNDECIDED
            else:
                self._write(row, np.array([point]), np.fromiter([found], object, 1))


def _as_balls(values: Column) -> Column:
    """Values as balls: truth values as 1, 0 and nan."""
    if not len(values) or not (values[0] is None or isinstance(values[0], bool)):
        return values
    ball = ball_type()
    truth = {True: ball(1), False: ball(0), None: ball("nan")}
    return np.fromiter((truth[v] for v in values), object, len(values))


_PRECISIONS = (1, 2, 4, 8, 16, 32)  # times the first
_ROOT_VALUE = 2.0**-400  # a value that small, of unknown sign, counts as 0
_TINY = 2.0**-1074  # where the root is 0, no relative tolerance is met
# How much smaller a continuous term becomes at least, towards its root. At a pole or a jump the sign changes, too, but
# the values do not shrink.
_SHRINKS = 2.0**-20


def root_between(term: Term, name: str, a: float, b: float, bits: int = 120) -> tuple[float, float]:
    """Root of a term of one variable between two points of opposite sign, by bisection.

    Args:
        term: the term.
        name: its variable.
        a, b: the two points; if the term is 0 at one of them, that is the root.
        bits: how many relative bits of the root to find.

    Returns:
        The root as a sum of two float64 numbers, the first rounded to float32: so that next to the root the difference
        from it is exact in float32, too. Together they have 24 + 53 bits at least.

    Raises:
        ValueError: if the signs are not opposite or not known, or the sign changes at a pole or a jump.
        RunnerError: if python-flint is not installed.
    """
    function, ball = _SignOf(term, name), ball_type()
    with working_precision() as set_precision:
        set_precision(2 * bits)
        root = function.bisect(ball(a), ball(b), 2.0**-bits)
        high = _rounded_to_float32(float(root))
        for rounded in (high, float(root)):
            if _sign(function.at(ball(rounded))) == 0:
                root = ball(rounded)
        return high + 0.0, float(root - high) + 0.0  # no −0


def _rounded_to_float32(value: float) -> float:
    """Number rounded to float32, or itself where it is beyond its range."""
    return float(np.float32(value)) if abs(value) < float(np.finfo(np.float32).max) else value


class _SignOf:
    """A term as a function of one variable, evaluated until its sign is known."""

    def __init__(self, term: Term, name: str) -> None:
        self.term, self.program, self.name = term, BallProgram([term]), name

    def at(self, x: Ball) -> Ball:
        bits = precision()
        with working_precision() as set_precision:
            for times in _PRECISIONS:
                set_precision(bits * times)
                value: Ball = self.program.at({self.name: x})[self.program.roots[0]]
                if value > 0 or value < 0 or value.abs_upper() < _ROOT_VALUE:
                    return value
        raise ValueError(f"no precision settles the sign of {self.term} at {self.name} = {float(x)!r}.")

    def bisect(self, a: Ball, b: Ball, tolerance: float) -> Ball:
        """Root between two exact points, within a relative tolerance."""
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
