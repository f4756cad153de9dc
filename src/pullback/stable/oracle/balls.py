"""Ball arithmetic: the working precision, terms as straight-line programs over balls, and balls rounded to float64.

A term is compiled to a list of steps, every subterm once, operands first. The result of a step encloses the exact
value; it is settled once its relative accuracy is at least `SETTLED_BITS`, and it is then rounded to an unevaluated sum
of two float64 numbers, which is more than any error in ulp needs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from pullback.errors import RunnerError

if TYPE_CHECKING:
    from flint import arb
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.errors import FormulaError
from pullback.ops.constants import CONSTANTS
from pullback.ops.registry import OPS
from pullback.stable.rewriting import without_cancellation
from pullback.stable.term import NAMED, VAR, Term, topological

try:
    import flint
except ImportError:
    flint = None  # type: ignore[assignment]

Ball: TypeAlias = "arb"

_lock = threading.RLock()


def ball_type() -> type[Ball]:
    """Class of balls.

    Raises:
        RunnerError: if python-flint is not installed.
    """
    if flint is None:
        raise RunnerError(
            "exact values are found in ball arithmetic by python-flint, which is not installed: "
            "pip install 'pullback[numerics]'."
        )
    return flint.arb


def precision() -> int:
    """Working precision, in bits."""
    return int(flint.ctx.prec)


@contextmanager
def working_precision() -> Iterator[Callable[[int], None]]:
    """Yield the function that sets the precision of ball arithmetic, in bits; restore the precision at the end.

    The precision is one number for the whole process, so one thread at a time is let in.

    Raises:
        RunnerError: if python-flint is not installed.
    """
    ball_type()
    with _lock:
        before = flint.ctx.prec
        try:
            yield _set_precision
        finally:
            flint.ctx.prec = before


def _set_precision(bits: int) -> None:
    flint.ctx.prec = bits


Column: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.object_]]"


class BallProgram:
    """Some terms, compiled. Values are balls, of conditions truth values (`balls`), at the precision of the moment.

    Attributes:
        terms: every subterm, operands first, without vanishing differences (`complements`); its place in this list is
            its slot.
        roots: the slots of the terms that were asked for.
        operands: the slots of every slot's operands.
        steps: of every slot that has operands, the slot, its function on balls and its operands.
    """

    def __init__(self, roots: Sequence[Term]) -> None:
        """Compile some terms.

        Raises:
            FormulaError: for an op that is not in the table.
            RunnerError: if python-flint is not installed.
        """
        roots = without_cancellation(roots)
        self.terms = topological(roots)
        slots = {term: slot for slot, term in enumerate(self.terms)}
        self.roots = [slots[root] for root in roots]
        self.operands = [tuple(slots[a] for a in term.args) for term in self.terms]
        self._variables = [(slot, term.value) for slot, term in enumerate(self.terms) if term.op == VAR]
        self.steps = [(slot, _ball_function(t), self.operands[slot]) for slot, t in enumerate(self.terms) if t.args]
        self._constants: dict[int, list[tuple[int, Ball]]] = {}
        ball_type()

    def at(self, point: Mapping[str, Ball]) -> list[Any]:
        """Value of every slot at one point."""
        values: list[Any] = [None] * len(self.terms)
        for slot, value in self._enclosed():
            values[slot] = value
        for slot, name in self._variables:
            values[slot] = point[name]
        for slot, function, operands in self.steps:
            values[slot] = function(*[values[o] for o in operands])
        return values

    def columns(self, points: Mapping[str, Column], wanted: np.ndarray) -> list[Column]:
        """Value of every slot at many points, computed only where a root that is wanted needs it.

        Args:
            points: the balls of every variable.
            wanted: for every root and point, whether it is wanted. Other entries of the columns are undefined.
        """
        count = wanted.shape[1]
        # Points at which a root is settled already cost nothing at the next precision.
        needed = self._needed(wanted)
        columns: list[Column] = [np.empty(0, object)] * len(self.terms)
        for slot, value in self._enclosed():
            columns[slot] = np.full(count, value, object)
        for slot, name in self._variables:
            columns[slot] = points[name]
        for slot, function, operands in self.steps:
            ahead = [columns[o] for o in operands]
            if needed[slot].all():
                columns[slot] = np.fromiter(map(function, *ahead), object, count)
            else:
                some = np.flatnonzero(needed[slot])
                columns[slot] = np.empty(count, object)
                columns[slot][some] = np.fromiter(map(function, *(a[some] for a in ahead)), object, len(some))
        return columns

    def _needed(self, wanted: np.ndarray) -> np.ndarray:
        needed = np.zeros((len(self.terms), wanted.shape[1]), bool)
        for slot, mask in zip(self.roots, wanted, strict=True):
            needed[slot] |= mask
        for slot in reversed(range(len(self.terms))):
            for operand in self.operands[slot]:
                needed[operand] |= needed[slot]
        return needed

    def _enclosed(self) -> list[tuple[int, Ball]]:
        bits = precision()
        if bits not in self._constants:
            self._constants[bits] = [
                (slot, constant_ball(term)) for slot, term in enumerate(self.terms) if not term.args and term.op != VAR
            ]
        return self._constants[bits]


def constant_ball(leaf: Term) -> Ball:
    """Enclosure of a constant."""
    ball = ball_type()
    value: Ball = (
        CONSTANTS[leaf.value](ball) if leaf.op == NAMED else ball(leaf.value.numerator) / leaf.value.denominator
    )
    return value


def _ball_function(term: Term) -> Callable[..., Any]:
    if term.op not in OPS:
        raise FormulaError(f"{term.op} is not in the table of pointwise ops: it has no exact value.")
    return OPS[term.op].ball


def straight_line(roots: Sequence[Term]) -> Callable[[Mapping[str, Ball]], list[Any]]:
    """Function from the balls of the variables to those of some terms, at the current working precision.

    Raises:
        FormulaError: for an op that is not in the table.
        RunnerError: if python-flint is not installed.
    """
    program = BallProgram(roots)

    def run(point: Mapping[str, Ball]) -> list[Any]:
        values = program.at(point)
        return [values[slot] for slot in program.roots]

    return run


SETTLED_BITS = 70
"""Relative accuracy, in bits, that settles a value: of float64 an error is then known to 2^(53 − 70) = 2⁻¹⁷ ulp."""

NEGLIGIBLE = 2.0**-400
"""A value known to be smaller is settled, unless more is asked for: as 0 if its digits are not known.

In every format but float64 it is less than 2⁻²⁵⁰ of the smallest number, 2⁻¹⁴⁹ or more.
"""


@dataclass(frozen=True, slots=True)
class RoundedBalls:
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


def round_balls(balls: Column, negligible: float = NEGLIGIBLE) -> RoundedBalls:
    """Round balls, at a working precision of at least 96 bits.

    Args:
        balls: the balls.
        negligible: a value known to be smaller is settled, as 0 if its digits are unknown.
    """
    count, ball = len(balls), ball_type()
    settled = np.fromiter(map(ball.rel_accuracy_bits, balls), np.int64, count) >= SETTLED_BITS
    settled &= np.fromiter(map(ball.is_finite, balls), bool, count)
    high, low = np.zeros(count), np.zeros(count)
    # high = fl(m) and low = fl(m − high) for the midpoint m: together 106 bits if low does not underflow, of which
    # `SETTLED_BITS` are proved
    middles = list(map(ball.mid, balls[settled]))
    high[settled] = list(map(float, middles))
    rests = map(operator.sub, middles, map(ball, high[settled].tolist()))
    low[settled] = list(map(float, rests))
    low[~(np.abs(high) >= negligible) | np.isinf(high)] = 0.0
    nan = np.zeros(count, bool)
    for i in np.flatnonzero(~settled):
        high[i], settled[i] = _round_wide(balls[i], negligible)
        nan[i] = balls[i].is_nan()
    return RoundedBalls(settled, high, low, nan)


def _round_wide(ball: Ball, negligible: float) -> tuple[float, bool]:
    """Value of a wide ball, and whether it is settled all the same: too small or too large to matter."""
    if not ball.is_finite():
        return 0.0, False
    if ball.abs_upper() < negligible:
        return 0.0, True
    beyond = math.isinf(float(ball.abs_lower()))
    return (math.copysign(math.inf, float(ball.mid())) if beyond else 0.0), beyond
