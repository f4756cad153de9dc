"""Points that a quick form is tried at: groups of neighbours, at all magnitudes and where usual formulas change."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import torch

from pullback.numerics.formats import Floats, Format, format_of
from pullback.numerics.sampling import thresholds

_JITTER = np.array([0.0, 2.0**-19, -(2.0**-14), 2.0**-10, -(2.0**-7), 2.0**-5])
"""Relative distances of the members of a group from its first."""
_ROWS = 360
"""Groups of several variables."""
_SPECIAL = (np.inf, -np.inf, np.nan, 0.0, 1.0, -1.0)


@cache
def groups(count: int, dtype: torch.dtype) -> tuple[Floats, ...]:
    """Return points of so many variables: of each an array, a group in every row."""
    form, random = format_of(dtype), np.random.default_rng(count)
    line = _line(form)
    rows = line[:, None] if count == 1 else _joint(line, count, random)
    signs = random.choice([-1.0, 1.0], (len(rows), len(_JITTER), count)) if count > 1 else 1.0
    spread = rows[:, None, :] * (1 + _JITTER[None, :, None] * signs)
    values = form.round(np.clip(spread, -form.largest, form.largest).reshape(-1)).reshape(spread.shape)
    return tuple(np.ascontiguousarray(values[..., i]) for i in range(count))


@cache
def special(count: int) -> tuple[Floats, ...]:
    """Return points of which a variable is infinite or NaN."""
    rows = np.array(list(product(_SPECIAL, repeat=count)))
    rows = rows[~np.isfinite(rows).all(1)]
    return tuple(np.ascontiguousarray(column) for column in rows.T)


def _line(form: Format) -> Floats:
    """Return numbers of a format, 0 among them."""
    powers = np.ldexp(1.0, np.linspace(form.min_exponent, form.max_exponent, 28).round().astype(int))
    steps = np.ldexp(1.0, -np.arange(2, form.mantissa + 1, 2))
    parts = (powers, 1 - steps, 1 + steps, np.linspace(0.04, 12, 48), np.linspace(13, 130, 32), thresholds(form))
    positive = np.concatenate([*parts, [form.largest]])
    return np.concatenate([-positive, [0.0], positive])


def _joint(line: Floats, count: int, random: np.random.Generator) -> Floats:
    """Return rows of several variables; some of them are equal, opposite, neighbours or of another magnitude."""
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
