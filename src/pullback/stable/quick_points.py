"""Points that a quick form is tried at: groups of neighbours, at all magnitudes and where usual formulas change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product

import numpy as np
import torch

from pullback.stable.formats import Floats, Format, format_of
from pullback.stable.sampling import thresholds

Columns = Sequence[Floats]
"""Of each variable its values."""

_JITTER = np.array([0.0, 2.0**-19, -(2.0**-14), 2.0**-10, -(2.0**-7), 2.0**-5])
"""Relative distances of the members of a group from its first."""
_DISTANCES = np.array([s * 2.0**-k for k in (3, 6, 10, 14, 19, 22) for s in (1, -1)] + [0.0])
"""Relative distances of groups from a root."""
_ROWS = 360
"""Groups of several variables."""
_ROOTS, _BISECTIONS = 4, 30
"""How many changes of sign of a function are looked at, and how closely."""
_SPECIAL = (np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, -1.0)


@cache
def groups(count: int, dtype: torch.dtype) -> tuple[Floats, ...]:
    """Return points for a number of variables: an array each, with a group in every row."""
    form = format_of(dtype)
    line = _line(form)
    rows = line[:, None] if count == 1 else _joint(line, count)
    return _rounded(rows[:, None, :] * (1 + _JITTER[None, :, None] * _signs(len(rows), count)), form)


def _signs(rows: int, count: int) -> Floats:
    """Return in which directions the variables of a group's members move apart."""
    shape = (rows, len(_JITTER), count)
    return np.random.default_rng(count).choice([-1.0, 1.0], shape) if count > 1 else np.ones(shape)


def _rounded(points: Floats, form: Format) -> tuple[Floats, ...]:
    """Return groups of numbers of a format, an array for each variable."""
    values = form.round(np.clip(points, -form.largest, form.largest).reshape(-1)).reshape(points.shape)
    return tuple(np.ascontiguousarray(values[..., i]) for i in range(points.shape[2]))


@cache
def special(count: int) -> tuple[Floats, ...]:
    """Return points with a variable that is infinite, NaN or a signed zero."""
    rows = np.array(list(product(_SPECIAL, repeat=count)))
    rows = rows[(~np.isfinite(rows) | (rows == 0)).any(1)]
    return tuple(np.ascontiguousarray(column) for column in rows.T)


def spread(count: int, most: int) -> np.ndarray:
    """Return evenly spread distinct indices below a size (`np.unique` imports masked arrays, which is slow)."""
    places = np.linspace(0, max(count - 1, 0), most).astype(int)[: most * bool(count)]
    return places[np.diff(places, prepend=-1) > 0]


def with_roots(points: Columns, functions: Sequence[Callable[[Columns], Floats]], dtype: torch.dtype) -> Columns:
    """Return groups, and more of them where functions change their sign: most forms are at their worst there.

    Args:
        points: groups, a row each.
        functions: of points in float64.
        dtype: of the points.
    """
    firsts = [x[:, 0] for x in points]
    found: list[Columns] = [firsts, *(roots(function, firsts) for function in functions)]
    rows = np.stack([np.concatenate(columns) for columns in zip(*found, strict=True)], axis=1)[len(firsts[0]) :]
    rows, distances = np.repeat(rows, len(_DISTANCES), 0), np.tile(_DISTANCES, len(rows))
    apart = distances[:, None, None] * (1 + 4 * _JITTER[None, :, None]) * _signs(len(rows), len(points))
    more = _rounded(rows[:, None, :] * (1 + apart), format_of(dtype))
    return tuple(np.concatenate(pair) for pair in zip(points, more, strict=True))


def roots(function: Callable[[Columns], Floats], points: Columns) -> Columns:
    """Return where a function changes its sign between successive points, and points at which it is 0."""
    sign = np.sign(function(points))
    left = np.flatnonzero(sign[:-1] * sign[1:] < 0)
    left = left[spread(len(left), _ROOTS // len(points))]
    between = _bisected(function, [x[left] for x in points], [x[left + 1] for x in points], sign[left])
    zeros = np.flatnonzero(sign == 0)
    zeros = zeros[spread(len(zeros), _ROOTS // len(points))]
    return [np.concatenate([a, x[zeros]]) for a, x in zip(between, points, strict=True)]


def _bisected(function: Callable[[Columns], Floats], low: Columns, high: Columns, sign: Floats) -> Columns:
    """Return points between others, where a function has a sign at the first ones and changes it."""
    for _ in range(_BISECTIONS):
        middle = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
        before = np.sign(function(middle)) == sign
        low = [np.where(before, m, a) for m, a in zip(middle, low, strict=True)]
        high = [np.where(before, b, m) for m, b in zip(middle, high, strict=True)]
    return low


def _line(form: Format) -> Floats:
    """Return numbers of a format, 0 among them."""
    powers = np.ldexp(1.0, np.linspace(form.min_exponent, form.max_exponent, 28).round().astype(int))
    steps = np.ldexp(1.0, -np.arange(2, form.mantissa + 1, 2))
    parts = (powers, 1 - steps, 1 + steps, np.linspace(0.04, 12, 48), np.linspace(13, 130, 32), thresholds(form))
    positive = np.concatenate([*parts, [form.largest]])
    return np.sort(np.concatenate([-positive, [0.0], positive]))


def _joint(line: Floats, count: int) -> Floats:
    """Return rows of several variables; some of them are equal, opposite, neighbours or of another magnitude."""
    random = np.random.default_rng(count)
    ordinary = line[np.abs(line) < 130]
    rows = np.where(random.random((_ROWS, count)) < 0.25, random.choice(line, (_ROWS, count)), 0.0)
    rows = np.where(rows == 0.0, random.choice(ordinary, (_ROWS, count)), rows)
    for second in range(1, count):
        equal, opposite, close, smaller, *_ = np.array_split(random.permutation(_ROWS), 10)
        before = rows[:, second - 1]
        rows[equal, second] = before[equal]
        rows[opposite, second] = -before[opposite]
        rows[close, second] = before[close] * 1.001
        rows[smaller, second] = before[smaller] * 2.0**-12
    return rows
