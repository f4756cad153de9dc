"""Limits of terms at points where their formula has no value, such as sin(x)/x at 0.

A limit is read off values at distances h of about 2⁻¹⁵⁰, 2⁻³⁰⁰ and 2⁻⁶⁰⁰ along a few paths into the point (times a
coordinate, where it is not 0, so that −10⁻³⁰⁰ is not taken for the edge of the domain of a logarithm). If the
term is L + C hᵃ there, up to logarithms, the differences of successive values are d₁ ≈ C 2^(−150a) and
d₂ ≈ C 2^(−300a), and the last value is off by about C 2^(−600a), which is below d₂²/d₁. So a limit is accepted where
d₂ is far below d₁ and d₂²/d₁ below 2⁻⁷⁵ L; where the last value itself is below d₂²/d₁, as for x·log(x), it is 0.
That takes a > 1/6: poles, logarithms, oscillations and approaches as slow as 1/log(x) have no limit here. It is
evidence and no proof: a term that turns within 2⁻⁶⁰⁰ of the point would deceive it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pullback.stable.domain import Lack, lacks
from pullback.stable.precision import Ball, ball_type, working_precision
from pullback.stable.program import Program
from pullback.stable.term import VAR, Term

_DISTANCES = (150, 300, 600)
_PRECISIONS = (1024, 2048, 4096, 8192)
_BITS = 400  # relative accuracy of the values, for their differences
_NOTHING = 2.0**-1000  # below this a value is 0
_SAME = 2.0**-370  # differences so much smaller than the values may be errors of the balls
_FASTER, _CLOSE = 2.0**-20, 2.0**-75
_NO_VALUE = (Lack.OUTSIDE, Lack.SINGULAR)


@dataclass(frozen=True, slots=True)
class _Step:
    """How a variable goes into the point: from the side of the sign of `slope`, as hᵒʳᵈᵉʳ."""

    slope: float
    order: int = 1


def limit(root: Term, point: Mapping[str, float]) -> Ball | Lack:
    """Return the limit of a term at a point, where its formula has no value there.

    Every path into the point on which the formula has values must lead to the same limit; a path without values (beyond
    the edge of its domain, or along a line of singularities) does not count.

    Returns:
        The limit; `Lack.OUTSIDE` if there is none; `Lack.OPEN` if precision ran out.
    """
    program = Program([root])
    names = [t.value for t in program.terms if t.op == VAR]
    found: Ball | None = None
    with working_precision() as set_precision:
        for path in _paths(len(names)):
            steps = dict(zip(names, path, strict=True))
            values = [_near(program, point, steps, distance, set_precision) for distance in _DISTANCES]
            if all(v in _NO_VALUE for v in values):
                continue
            if Lack.OPEN in values:
                return Lack.OPEN
            balls = [v for v in values if not isinstance(v, Lack)]
            reached = _converged(*balls) if len(balls) == len(values) else None
            if reached is None or (found is not None and not _same(found, reached)):
                return Lack.OUTSIDE
            found = reached
    return Lack.OUTSIDE if found is None else found


def _paths(count: int) -> Iterator[tuple[_Step, ...]]:
    """Yield ways into a point: along each axis, straight across at uneven slopes, and along parabolas."""
    for axis in range(count):
        for sign in (1.0, -1.0):
            yield tuple(_Step(sign if i == axis else 0.0) for i in range(count))
    if count == 1:
        return
    for even, odd in ((1, 1), (-1, -1), (1, -1), (-1, 1)):
        slopes = [(odd if i % 2 else even) * (8 - i % 8) / 8 for i in range(count)]
        yield tuple(map(_Step, slopes))
        for axis in range(count):
            yield tuple(_Step(slope, 1 if i == axis else 2) for i, slope in enumerate(slopes))


def _near(
    program: Program,
    point: Mapping[str, float],
    steps: Mapping[str, _Step],
    distance: int,
    set_precision: Callable[[int], None],
) -> Ball | Lack:
    """Return the value of a term about 2^−distance away from a point, or why there is none."""
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
        lack = lacks(program, values)[program.roots[0]]
        if lack in _NO_VALUE:
            return lack
        if lack is None and value.is_finite():
            if value.rel_accuracy_bits() >= _BITS:
                return value
            if value.abs_upper() < _NOTHING:
                return ball(0)
    return Lack.OPEN


def _converged(first: Ball, second: Ball, third: Ball) -> Ball | None:
    """Return the limit of three values, if they converge; the derivation is at the top of this file."""
    far, near = abs(first - second), abs(second - third)
    size = third.abs_lower()
    if far.abs_upper() <= _SAME * size and near.abs_upper() <= _SAME * size:
        return third
    if not near.abs_upper() <= _FASTER * far.abs_lower():
        return None
    rest = near.abs_upper() ** 2 / far.abs_lower()
    if third.abs_upper() <= rest:
        return ball_type()(0)
    return third if rest <= _CLOSE * size else None


def _same(a: Ball, b: Ball) -> bool:
    return bool(abs(a - b).abs_upper() <= 2 * _CLOSE * a.abs_lower())
