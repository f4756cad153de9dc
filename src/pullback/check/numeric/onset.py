"""From one bad point to where the bad begins: all numbers of a point scaled together, then bisected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pullback.check.numeric.elementwise import Columns, columns
from pullback.stable.formats import Floats, Format, Mask

_DOUBLINGS = 40
_PARTS, _ROUNDS = 16, 16
"""16 rounds of 16 parts: more numbers than any format has."""


@dataclass(frozen=True, slots=True)
class Onset:
    """Where it begins.

    Attributes:
        point: the first bad point.
        upwards: whether larger magnitudes are bad; else smaller ones.
    """

    point: dict[str, float]
    upwards: bool


def onset(bad: Callable[[Columns], Mask], form: Format, point: dict[str, float]) -> Onset | None:
    """Return the first bad point on the way from a good one, with smaller or else larger numbers, to a bad one."""
    for upwards in (True, False):
        factors = np.ldexp(1.0, (-1 if upwards else 1) * np.arange(1, _DOUBLINGS + 1))
        rows = {name: form.round(x * factors) for name, x in point.items()}
        inside = np.all([np.isfinite(x) for x in rows.values()], axis=0)
        if not inside.any() or not any(point.values()):
            continue
        fine = np.flatnonzero(~bad({name: x[inside] for name, x in rows.items()}))
        if len(fine):
            good = {name: float(x[inside][fine[0]]) for name, x in rows.items()}
            return Onset(_first_bad(bad, form, good, point), upwards)
    return None


def _first_bad(
    bad: Callable[[Columns], Mask], form: Format, good: dict[str, float], point: dict[str, float]
) -> dict[str, float]:
    names = list(point)
    low, high = (form.ordinal(np.array([p[name] for name in names])) for p in (good, point))
    for _ in range(_ROUNDS):
        steps = [low + (high - low) * k // _PARTS for k in range(1, _PARTS)]
        rows = form.at_ordinal(np.array(steps).T)
        found = np.flatnonzero(bad(dict(zip(names, rows, strict=True))))
        first = found[0] if len(found) else _PARTS - 1
        after = steps[first] if len(found) else high
        before = steps[first - 1] if first else low
        if np.array_equal(after, high) and np.array_equal(before, low):
            break
        low, high = before, after
    return dict(zip(names, map(float, form.at_ordinal(high)), strict=True))


def plainest(at: Columns, among: Mask) -> tuple[int, dict[str, float]]:
    """Return index and coordinates of the most ordinary of some points: neither large, tiny nor 0."""
    with np.errstate(divide="ignore"):
        far: Floats = np.max([np.where(x == 0, _ODD_ZERO, np.abs(np.log2(np.abs(x)))) for x in at.values()], axis=0)
        far = far + _TIE * np.any([np.signbit(x) for x in at.values()], axis=0)
    index = int(np.argmin(np.where(among, far, np.inf)))
    return index, {name: float(x[index]) for name, x in at.items()}


_ODD_ZERO = 12.0
"""Binary orders of magnitude that 0 counts as: a point with larger or tinier numbers is odder."""
_TIE = 1e-6
"""The positive of two such numbers."""


PASSED, ORDINARY = (1e-2, 1e2), (1e-8, 1e4)
"""Magnitudes of numbers that are passed every day, and of those that are passed now and then."""


def is_within(point: dict[str, float], magnitudes: tuple[float, float]) -> bool:
    """Whether each number is 0, or of a magnitude between the two."""
    return all(x == 0 or magnitudes[0] <= abs(x) <= magnitudes[1] for x in point.values())


def single(point: dict[str, float]) -> Columns:
    """Return one point as columns."""
    return columns([point])
