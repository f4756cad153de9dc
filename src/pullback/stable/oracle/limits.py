"""Points at which a term has no value: the reason, and the limit if there is one, such as of sin(x)/x at 0.

A ball is nan for three reasons: too little precision, a singularity, or a point outside the domain. √ of a ball that
reaches below 0 by its error alone is as much nan as √(−1).

A limit is read off values at distances h of about 2⁻¹⁵⁰, 2⁻³⁰⁰ and 2⁻⁶⁰⁰ along a few paths into the point (times a
coordinate, where it is not 0, so that −10⁻³⁰⁰ is not taken for the edge of the domain of a logarithm). If the term is L
+ C hᵃ there, up to logarithms, the differences of successive values are d₁ ≈ C 2^(−150a) and d₂ ≈ C 2^(−300a), and the
last value is off by about C 2^(−600a), which is below d₂²/d₁. So a limit is accepted where d₂ is far below d₁ and
d₂²/d₁ below 2⁻⁷⁵ L; where the last value itself is below d₂²/d₁, as for x·log(x), it is 0. That takes a > 1/6: poles,
logarithms, oscillations and approaches as slow as 1/log(x) have no limit here. It is evidence and no proof: a term that
turns within 2⁻⁶⁰⁰ of the point would deceive it.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pullback.ops.registry import CONDITIONS
from pullback.stable.oracle.balls import Ball, BallProgram, ball_type, working_precision
from pullback.stable.term import VAR, Term

_NUDGE = 2.0**-60
"""Relative distance from its operands at which an op is tested for values."""


class NoValue(enum.Enum):
    """Reason why there is no value."""

    UNDECIDED = "more precision may give one"
    SINGULAR = "an operation is at the edge of its domain or at a hole in it, such as 0/0 or log(0): perhaps a limit"
    OUTSIDE = "the formula has none, there or nearby, such as log(-1)"


_GRAVEST_FIRST = (NoValue.OUTSIDE, NoValue.UNDECIDED, NoValue.SINGULAR)


def why_no_value(program: BallProgram, values: Sequence[Any]) -> list[NoValue | None]:
    """For every slot of a program the reason why it has no value at a point; `None` where it has one.

    Args:
        program: the program.
        values: the value of every slot at this point. A value that is `None` or nan is none.
    """
    found: list[NoValue | None] = [None] * len(values)
    for slot, function, operands in program.steps:
        value = values[slot]
        if value is None or (not isinstance(value, bool) and value.is_nan()):
            op = program.terms[slot].op
            read = _operands_used(operands, values) if op == "where" else operands
            inherited = {found[o] for o in read}
            found[slot] = next((lack for lack in _GRAVEST_FIRST if lack in inherited), None) or (
                NoValue.UNDECIDED if op in CONDITIONS else _why_here(function, [values[o] for o in read])
            )
    return found


def _operands_used(operands: Sequence[int], values: Sequence[Any]) -> tuple[int, ...]:
    condition, a, b = operands
    return (condition,) if values[condition] is None else (a if values[condition] else b,)


def _why_here(function: Any, operands: Sequence[Ball]) -> NoValue:
    """Reason why an op has no value where its operands have theirs.

    Where an op is nan it has an interval for its domain, or misses a point of its operand exactly (`balls`). So if it
    has no value at the ends of a ball nor in its middle it has none in between, provided that the ball is too narrow
    to hold a domain between these, such as [−1, 1].
    """
    if not all(map(_is_narrow, operands)):
        return NoValue.UNDECIDED
    if _has_some_value(function, [(a,) if a.is_exact() else (a.lower(), a.mid(), a.upper()) for a in operands]):
        return NoValue.UNDECIDED
    # No value at the operands. If there is one right beside them, they are at an edge of the domain or at a hole in it.
    nudges = [(1 if a.contains(0) else abs(a)) * _NUDGE for a in operands]
    beside = [(a.lower() - by, a.upper() + by) for a, by in zip(operands, nudges, strict=True)]
    return NoValue.SINGULAR if _has_some_value(function, beside) else NoValue.OUTSIDE


def _is_narrow(a: Ball) -> bool:
    return a.is_finite() and (a.rel_accuracy_bits() > 1 or a.abs_upper() < 0.5)


def _has_some_value(function: Any, operands: Sequence[tuple[Ball, ...]]) -> bool:
    return not all(function(*corner).is_nan() for corner in itertools.product(*operands))


_DISTANCES = (150, 300, 600)
_PRECISIONS = (1024, 2048, 4096, 8192)
_BITS = 400  # relative accuracy of the values, for their differences
_ZERO = 2.0**-1000  # below this a value is 0
_NOISE = 2.0**-370  # differences so much smaller than the values may be errors of the balls
_FASTER, _CLOSE = 2.0**-20, 2.0**-75
_DEFINITE = (NoValue.OUTSIDE, NoValue.SINGULAR)


@dataclass(frozen=True, slots=True)
class _PathStep:
    """Approach of a variable to the point: from the side of the sign of `slope`, as hᵒʳᵈᵉʳ."""

    slope: float
    order: int = 1


def limit(root: Term, point: Mapping[str, float]) -> Ball | NoValue:
    """Limit of a term at a point, where its formula has no value there.

    Every path into the point on which the formula has values must lead to the same limit; a path without values (beyond
    the edge of its domain, or along a line of singularities) does not count.

    Returns:
        The limit; `NoValue.OUTSIDE` if there is none; `NoValue.UNDECIDED` if precision ran out.
    """
    program = BallProgram([root])
    names = [t.value for t in program.terms if t.op == VAR]
    found: Ball | None = None
    with working_precision() as set_precision:
        for path in _paths(len(names)):
            steps = dict(zip(names, path, strict=True))
            values = [_value_near(program, point, steps, distance, set_precision) for distance in _DISTANCES]
            if all(v in _DEFINITE for v in values):
                continue
            if NoValue.UNDECIDED in values:
                return NoValue.UNDECIDED
            balls = [v for v in values if not isinstance(v, NoValue)]
            reached = _converged(*balls) if len(balls) == len(values) else None
            if reached is None or (found is not None and not _agree(found, reached)):
                return NoValue.OUTSIDE
            found = reached
    return NoValue.OUTSIDE if found is None else found


def _paths(count: int) -> Iterator[tuple[_PathStep, ...]]:
    """Yield paths into a point: along each axis, straight across at uneven slopes, and along parabolas."""
    for axis in range(count):
        for sign in (1.0, -1.0):
            yield tuple(_PathStep(sign if i == axis else 0.0) for i in range(count))
    if count == 1:
        return
    for even, odd in ((1, 1), (-1, -1), (1, -1), (-1, 1)):
        slopes = [(odd if i % 2 else even) * (8 - i % 8) / 8 for i in range(count)]
        yield tuple(map(_PathStep, slopes))
        for axis in range(count):
            yield tuple(_PathStep(slope, 1 if i == axis else 2) for i, slope in enumerate(slopes))


def _value_near(
    program: BallProgram,
    point: Mapping[str, float],
    steps: Mapping[str, _PathStep],
    distance: int,
    set_precision: Callable[[int], None],
) -> Ball | NoValue:
    """Value of a term about 2^−distance away from a point, or why there is none."""
    ball = ball_type()
    set_precision(_PRECISIONS[-1])  # more than enough for the point itself to be exact
    at = {
        name: ball(point[name]) + ball((1, -distance * step.order)) * (step.slope * (abs(point[name]) or 1.0))
        for name, step in steps.items()
    }
    for bits in _PRECISIONS:
        set_precision(bits)
        values = program.at(at)
        value: Ball = values[program.roots[0]]
        lack = why_no_value(program, values)[program.roots[0]]
        if lack in _DEFINITE:
            return lack
        if lack is None and value.is_finite():
            if value.rel_accuracy_bits() >= _BITS:
                return value
            if value.abs_upper() < _ZERO:
                return ball(0)
    return NoValue.UNDECIDED


def _converged(first: Ball, second: Ball, third: Ball) -> Ball | None:
    """Limit of three values, if they converge; the derivation is at the top of this file."""
    far, near = abs(first - second), abs(second - third)
    size = third.abs_lower()
    if far.abs_upper() <= _NOISE * size and near.abs_upper() <= _NOISE * size:
        return third
    if not near.abs_upper() <= _FASTER * far.abs_lower():
        return None
    rest = near.abs_upper() ** 2 / far.abs_lower()
    if third.abs_upper() <= rest:
        return ball_type()(0)
    return third if rest <= _CLOSE * size else None


def _agree(a: Ball, b: Ball) -> bool:
    return bool(abs(a - b).abs_upper() <= 2 * _CLOSE * a.abs_lower())
