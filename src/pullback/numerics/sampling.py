"""Points to measure at: every number of a 16-bit format; of wider ones a sample that does not miss the edges.

A sample of one variable has every power of two, numbers close to ±1, windows of consecutive numbers at thresholds
(where exp overflows or underflows, where a sum with 1 no longer changes, at the ends of the domain), random bit
patterns and random reals. Samples of several variables pair such numbers, among them equal, opposite and neighbouring
ones. The same seed gives the same points.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from pullback.numerics.formats import Floats, Format, format_of

Domain = Mapping[str, tuple[float, float]]
"""For a variable the closed interval that it is taken from; all numbers where it has none."""

_EVERYTHING = (-math.inf, math.inf)
_PATTERNS = 6000
_REALS = ((1.2, 4000), (10.0, 3000), (120.0, 4000))
"""Half-widths of the intervals around 0 from which reals are drawn uniformly, and how many."""
_WINDOW = 64
_JOINT = 24000
"""Points of several variables."""


def every(dtype: torch.dtype) -> Floats:
    """Return every finite number of a 16-bit format, in order; 0 and −0 both."""
    form = format_of(dtype)
    last = int(form.ordinal(np.array([form.largest]))[0])
    values = form.at_ordinal(np.arange(-last, last + 1))
    return np.insert(values, last, -0.0)


def window(center: float, count: int, dtype: torch.dtype) -> Floats:
    """Return `count` consecutive finite numbers of a format around a point."""
    form = format_of(dtype)
    middle = int(form.ordinal(form.round(np.array([center])))[0])
    values = form.at_ordinal(np.arange(middle - count // 2, middle - count // 2 + count))
    return values[np.isfinite(values)]


def points(
    variables: Sequence[str],
    dtype: torch.dtype,
    seed: int = 0,
    domain: Domain | None = None,
    near: Iterable[Mapping[str, float]] = (),
) -> dict[str, Floats]:
    """Return points of a format to measure at, as one array for each variable.

    Args:
        variables: their names.
        dtype: of the points.
        seed: of the random ones.
        domain: where they lie.
        near: points around which to look closely.

    Raises:
        OptionError: if the dtype is not one of the formats.
    """
    form, limits = format_of(dtype), domain or {}
    intervals = [limits.get(name, _EVERYTHING) for name in variables]
    if len(variables) == 1:
        columns = [_line(form, intervals[0], np.random.default_rng(seed), [p[variables[0]] for p in near])]
    else:
        columns = _joint(form, intervals, np.random.default_rng(seed), [[p[v] for v in variables] for p in near])
    return dict(zip(variables, columns, strict=True))


def thresholds(form: Format) -> list[float]:
    """Return positive numbers at which usual formulas of a format change their nature."""
    # As multiples of ln 2: where eˣ overflows, is subnormal, is 0; where 1 + eˣ and tanh x round to 1.
    p, smallest = form.mantissa + 1, form.min_exponent - form.mantissa
    exponents = [form.max_exponent + 1, -form.min_exponent, -smallest, 1 - smallest, p - 1, p, p + 1, p / 2 + 1]
    exponential = [math.log(2) * k for k in exponents]
    gaussian = [math.sqrt(2 * x) for x in exponential]  # of exp(−x²/2), and over √2 of exp(−x²)
    powers = [2.0 ** ((form.max_exponent + 1) / 2), 2.0 ** (form.min_exponent / 2), 2.0**-p, 2.0 ** (-p / 2)]
    return [*exponential, *(x / 2 for x in exponential), *gaussian, *(x / math.sqrt(2) for x in gaussian), *powers]


def _line(form: Format, interval: tuple[float, float], random: np.random.Generator, near: list[float]) -> Floats:
    """Return the sample of one variable, sorted; −0 beside 0."""
    low, high = interval
    ends = [x for x in interval if math.isfinite(x)]
    edges = [s * t for t in thresholds(form) for s in (1, -1)]
    parts = [
        *(window(x, _WINDOW, form.dtype) for x in (*edges, *ends)),
        *(window(x, 4 * _WINDOW, form.dtype) for x in near),
        *_regular(form),
        _spread(form, interval, random, _PATTERNS),
        *(random.uniform(a, b, count) for a, b, count in _windows(low, high)),
    ]
    values = np.unique(form.round(np.concatenate(parts)))
    values = values[np.isfinite(values) & (values >= low) & (values <= high)]
    return np.insert(values, np.searchsorted(values, 0.0), -0.0) if 0.0 in values else values


def _regular(form: Format) -> list[Floats]:
    """Return 0, the powers of two with a neighbour, numbers close to ±1, and the largest."""
    powers = np.ldexp(1.0, np.arange(form.min_exponent - form.mantissa, form.max_exponent + 1))
    steps = np.ldexp(1.0, -np.arange(1, form.mantissa + 2))
    positive = np.concatenate([powers, powers * (1 + 2.0**-form.mantissa), 1 + steps, 1 - steps, [form.largest]])
    return [np.zeros(1), positive, -positive]


def _spread(form: Format, interval: tuple[float, float], random: np.random.Generator, count: int) -> Floats:
    """Return random numbers of a format between two ends, each bit pattern equally likely."""
    ends = np.clip(np.array(interval), -form.largest, form.largest)
    low, high = form.ordinal(form.round(ends))
    return form.at_ordinal(random.integers(low, high, count, endpoint=True))


def _windows(low: float, high: float) -> list[tuple[float, float, int]]:
    """Return intervals to draw reals from, with how many, within the domain."""
    around = [(max(low, -half), min(high, half), count) for half, count in _REALS]
    whole = [(low, high, _REALS[0][1])] if math.isfinite(high - low) else []
    return [(a, b, count) for a, b, count in (*around, *whole) if a < b]


def _joint(
    form: Format, intervals: list[tuple[float, float]], random: np.random.Generator, near: list[list[float]]
) -> list[Floats]:
    """Return the sample of several variables: lines drawn from independently, then some pairs brought together."""
    lines = [_line(form, interval, random, []) for interval in intervals]
    rows = np.stack([random.choice(line, _JOINT) for line in lines], axis=1)
    for first, second in zip(range(len(lines) - 1), range(1, len(lines)), strict=True):
        picked = np.array_split(random.permutation(_JOINT), 8)
        x = rows[:, first]
        rows[picked[0], second] = x[picked[0]]
        rows[picked[1], second] = -x[picked[1]]
        steps = random.integers(-64, 65, len(picked[2]))
        rows[picked[2], second] = form.at_ordinal(form.ordinal(x[picked[2]]) + steps)
        scale = np.ldexp(1.0, -random.integers(1, form.mantissa + 4, len(picked[3])))
        rows[picked[3], second] = x[picked[3]] * scale
        rows[picked[4], first], rows[picked[5], second] = 0.0, 0.0
    for center in near:
        around = form.ordinal(form.round(np.array(center))) + random.integers(-64, 65, (4 * _WINDOW, len(center)))
        rows = np.concatenate([rows, form.at_ordinal(around)])
    rows = np.unique(form.round(rows), axis=0)
    inside = [np.isfinite(x) & (x >= low) & (x <= high) for x, (low, high) in zip(rows.T, intervals, strict=True)]
    rows = rows[np.logical_and.reduce(inside)]
    return [np.ascontiguousarray(x) for x in rows.T]
