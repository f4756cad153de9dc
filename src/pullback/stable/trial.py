"""Trial of a quick form against the formula as written, at points of all magnitudes and without the oracle.

The reference is float64. A rule is an equation; so where the form agrees in float32 and in float64 up to rounding, it
does not cancel there, and its float64 value has more correct digits than needed. The same holds where the form and the
formula as written, which are computed differently, agree in float64. A dispute is a point where the formula as written
agrees in float32 and in float64, but not with the form: 1 + eˣ may be 1 in both, or the formula may differ from its
term. An exact value is computed for a few of the disputes, by mpmath, a dependency of PyTorch, since the oracle's
library is optional; if that fails, the form is refused. Undecided points count only if the form is NaN or infinite
there and the formula as written is finite.

Points are groups of neighbours, so that no lucky rounding at a single point decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import torch

from pullback.ops.constants import MPMATH
from pullback.ops.registry import OPS
from pullback.stable.formats import Floats, Format, Mask, format_of
from pullback.stable.sampling import thresholds
from pullback.stable.term import CONST, NAMED, VAR, Term, topological

PointColumns = Sequence[Floats]
"""Of each variable its values."""

_JITTER = np.array([0.0, 2.0**-19, -(2.0**-14), 2.0**-10, -(2.0**-7), 2.0**-5])
"""Relative distances of the members of a group from its first."""
_ROOT_DISTANCES = np.array([s * 2.0**-k for k in (3, 6, 10, 14, 19, 22) for s in (1, -1)] + [0.0])
"""Relative distances of groups from a root."""
_ROWS = 360
"""Groups of several variables."""
_ROOTS, _BISECTIONS = 4, 30
"""Changes of sign that are looked at for a function, and bisections towards each, to 2⁻³⁰ of a distance."""
_SPECIAL = (np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, -1.0)


@cache
def trial_points(count: int, dtype: torch.dtype) -> tuple[Floats, ...]:
    """Points for a number of variables: an array for each variable, with a group of neighbours in every row."""
    form = format_of(dtype)
    line = _number_line(form)
    rows = line[:, None] if count == 1 else _joint_rows(line, count)
    return _rounded(rows[:, None, :] * (1 + _JITTER[None, :, None] * _signs(len(rows), count)), form)


def _signs(rows: int, count: int) -> Floats:
    """Signs with which the variables of the members of a group move apart."""
    shape = (rows, len(_JITTER), count)
    return np.random.default_rng(count).choice([-1.0, 1.0], shape) if count > 1 else np.ones(shape)


def _rounded(points: Floats, form: Format) -> tuple[Floats, ...]:
    """Groups of numbers of a format, an array for each variable."""
    values = form.round(np.clip(points, -form.largest, form.largest).reshape(-1)).reshape(points.shape)
    return tuple(np.ascontiguousarray(values[..., i]) for i in range(points.shape[2]))


@cache
def special_points(count: int) -> tuple[Floats, ...]:
    """Points with a variable that is infinite, NaN or a signed zero."""
    rows = np.array(list(product(_SPECIAL, repeat=count)))
    rows = rows[(~np.isfinite(rows) | (rows == 0)).any(1)]
    return tuple(np.ascontiguousarray(column) for column in rows.T)


def evenly_spread(count: int, most: int) -> np.ndarray:
    """Evenly spread distinct indices below a size (`np.unique` imports masked arrays, which is slow)."""
    indices = np.linspace(0, max(count - 1, 0), most).astype(int)[: most * bool(count)]
    return indices[np.diff(indices, prepend=-1) > 0]


def with_root_groups(
    points: PointColumns, functions: Sequence[Callable[[PointColumns], Floats]], dtype: torch.dtype
) -> PointColumns:
    """Groups, and more of them where functions change their sign: most forms have their largest error there.

    Args:
        points: groups, a row each.
        functions: functions of float64 points.
        dtype: dtype of the points.
    """
    firsts = [x[:, 0] for x in points]
    found: list[PointColumns] = [firsts, *(sign_changes(function, firsts) for function in functions)]
    rows = np.stack([np.concatenate(columns) for columns in zip(*found, strict=True)], axis=1)[len(firsts[0]) :]
    rows, distances = np.repeat(rows, len(_ROOT_DISTANCES), 0), np.tile(_ROOT_DISTANCES, len(rows))
    apart = distances[:, None, None] * (1 + 4 * _JITTER[None, :, None]) * _signs(len(rows), len(points))
    more = _rounded(rows[:, None, :] * (1 + apart), format_of(dtype))
    return tuple(np.concatenate(pair) for pair in zip(points, more, strict=True))


def sign_changes(function: Callable[[PointColumns], Floats], points: PointColumns) -> PointColumns:
    """Points where a function changes its sign between successive points, and points at which it is 0."""
    sign = np.sign(function(points))
    left = np.flatnonzero(sign[:-1] * sign[1:] < 0)
    left = left[evenly_spread(len(left), _ROOTS // len(points))]
    between = _bisected(function, [x[left] for x in points], [x[left + 1] for x in points], sign[left])
    zeros = np.flatnonzero(sign == 0)
    zeros = zeros[evenly_spread(len(zeros), _ROOTS // len(points))]
    return [np.concatenate([a, x[zeros]]) for a, x in zip(between, points, strict=True)]


def _bisected(
    function: Callable[[PointColumns], Floats], low: PointColumns, high: PointColumns, sign: Floats
) -> PointColumns:
    """Bisect towards changes of sign; `sign` is that of a function at the lower ends."""
    for _ in range(_BISECTIONS):
        middle = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
        before = np.sign(function(middle)) == sign
        low = [np.where(before, m, a) for m, a in zip(middle, low, strict=True)]
        high = [np.where(before, b, m) for m, b in zip(middle, high, strict=True)]
    return low


def _number_line(form: Format) -> Floats:
    """Numbers of a format in order, 0 among them."""
    powers = np.ldexp(1.0, np.linspace(form.min_exponent, form.max_exponent, 28).round().astype(int))
    steps = np.ldexp(1.0, -np.arange(2, form.mantissa + 1, 2))
    parts = (powers, 1 - steps, 1 + steps, np.linspace(0.04, 12, 48), np.linspace(13, 130, 32), thresholds(form))
    positive = np.concatenate([*parts, [form.largest]])
    return np.sort(np.concatenate([-positive, [0.0], positive]))


def _joint_rows(line: Floats, count: int) -> Floats:
    """Rows of several variables; some of them are equal, opposite, neighbours or of another magnitude."""
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


_PRECISIONS = (500, 1000)
"""Working precisions, in bits; where their results differ, the value is unknown."""
_ALIKE, _NEGLIGIBLE = 2.0**-40, 2.0**-300
"""A difference of ordinary numbers that is 0 leaves a residue of about 2⁻⁵⁰⁰, and 2⁻¹⁰⁰⁰ in the higher precision."""
_LIMIT_PRECISION, _LIMIT_DISTANCES, _CLOSE, _VANISHING = 3000, (200, 400), 2.0**-60, 2.0**-90
"""Limits are read off values at two distances from a place, as powers of two, on both sides.

If f = L + C hᵃ, the values differ by C 2^(−200a): with C and L of one size they are close for a ≥ 0.3, and where L = 0
they vanish for a > 0.45. Terms of size h⁻ᵏ that cancel lose 400 k bits at the nearer distance: 1600 in the fourth
derivative of sin(x)/x.
"""
_NO_VALUE = (ImportError, ArithmeticError, ValueError, KeyError, TypeError, NotImplementedError)


def mpmath_value(root: Term, point: Mapping[str, float]) -> float | None:
    """Value of a term at a point, rounded; `None` if it has none, or it cannot be computed."""
    try:
        rough, value = (_value(root, point, bits) for bits in _PRECISIONS)
        if rough is None or value is None:
            return None
        if max(abs(rough), abs(value)) < _NEGLIGIBLE:  # the residue of a cancellation, or as small in truth
            return 0.0
        if abs(rough - value) > _ALIKE * abs(value):
            return None
        return float(value)
    except _NO_VALUE:
        return None


def mpmath_limit(root: Term, name: str, place: float) -> float | None:
    """Limit of a term of one variable at a place, rounded; `None` if it has none from both sides."""
    try:
        context, _ = _context(_LIMIT_PRECISION)
        steps = [sign * context.ldexp(1, -d) for d in _LIMIT_DISTANCES for sign in (1, -1)]
        values = [_value(root, {name: context.mpf(place) + step}, _LIMIT_PRECISION) for step in steps]
    except _NO_VALUE:
        return None
    if any(value is None for value in values):
        return None
    if max(map(abs, values)) < _VANISHING:
        return 0.0
    return float(values[-1]) if all(abs(v - values[-1]) <= _CLOSE * abs(values[-1]) for v in values) else None


def _value(root: Term, point: Mapping[str, Any], bits: int) -> Any:
    context, functions = _context(bits)
    made: dict[Term, Any] = {}
    for term in topological([root]):
        if term.op == VAR:
            made[term] = context.mpf(point[term.value])
        elif term.op == CONST:
            made[term] = context.mpf(term.value.numerator) / term.value.denominator
        elif term.op == NAMED:
            made[term] = functions[term.value]
        else:
            made[term] = functions[term.op](*(made[a] for a in term.args))
            if isinstance(made[term], context.mpc):  # outside of the domain
                return None
    value = made[root]
    return value if context.isfinite(value) else None


@cache
def _context(bits: int) -> tuple[Any, dict[str, Any]]:
    """Separate mpmath context, and the functions of the table of ops in it."""
    import mpmath  # type: ignore[import-untyped]  # late: it takes a twentieth of a second, and not all formulas need it

    mp = mpmath.MPContext()
    mp.prec = bits
    functions = {name: _mpmath_function(mp, op.mpmath) for name, op in OPS.items() if op.mpmath is not None}
    numbers = {name: of(mp) for name, of in MPMATH.items()}
    return mp, {**functions, **numbers}


def _mpmath_function(mp: Any, function: str | Callable[..., Any]) -> Callable[..., Any]:
    made: Callable[..., Any] = getattr(mp, function) if isinstance(function, str) else partial(function, mp)
    return made


ExactAt = Callable[[int, int], float | None]

FLOOR = 4.0
"""Error in ulp that is acceptable, whatever the error of the formula as written."""
GAIN = 4.0
"""Factor by which the error has to shrink for a form to be worth its cost."""
_SETTLED, _AGREE, _DISPUTED = 2.0**-8, 2.0**-30, 2.0**-26
"""Relative differences: between float32 and float64 without cancellation, between two ways that agree, between two
that do not.

Cancellation multiplies the rounding errors of both formats alike. A float32 result that is right to 2⁻⁸ has lost at
most 16 of 24 bits, so float64 has some 37 of 53 left, 13 more than float32 holds. An ulp of float32 is 2⁻²⁴ to 2⁻²³ of
a number: ways that agree differ by less than 2⁻⁶ ulp, those in dispute by more than 1/8 ulp.
"""
_MOST_DISPUTED = 8
"""Disputed points at which exact values are computed."""
_FEWEST = 12
"""Smallest number of groups with a settled point for a verdict."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results of one way to compute a quantity at the points: in the format, in float32 and in float64."""

    result: Floats
    narrow: Floats
    wide: Floats


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """Whether a form is better than the formula as written in some group of points, and worse in some."""

    better: bool
    worse: bool


def compare(form: Evaluation, written: Evaluation, format_: Format, single: Format, exact: ExactAt) -> TrialOutcome:
    """Compare a form with the formula as written, at groups of points, one in each row.

    Args:
        form: results of the quick form.
        written: autograd's results for the formula as written.
        format_: format of the results.
        single: float32's.
        exact: the value at a point, by its row and place; `None` if it cannot be computed.
    """
    # Three kinds of evidence for a float64 value: form and formula agree, the form agrees with itself in float32, or
    # the formula does. The first two are evidence for the form's value, the third alone for the formula's.
    agree = _close(form.wide, written.wide, _AGREE * np.abs(form.wide))
    ours, theirs = (_settled(way, single) for way in (form, written))
    larger = np.fmax(np.abs(form.wide), np.abs(written.wide))
    disputed = theirs & ~_close(form.wide, written.wide, _DISPUTED * larger) & ~(larger < format_.smallest_normal)
    disputed |= ~(agree | ours) & np.isnan(written.result) & np.isfinite(form.result)
    known = (agree | ours | theirs) & ~disputed
    truth = np.where(agree | ours, form.wide, written.wide)
    for row, place in _some_of(np.argwhere(disputed)):
        value = exact(row, place)
        if value is None:
            return TrialOutcome(better=False, worse=True)
        known[row, place], truth[row, place] = True, value
    error, error_written = (_trial_error(way.result, truth, known, format_) for way in (form, written))
    lost = ~np.isfinite(form.result) & np.isfinite(written.result) & (~known | np.isinf(error))
    # NaN is better than a number that is several times too large: a value has fewer than 2^(mantissa + 1) ulp, so this
    # error is more than twice the value
    lost |= np.isnan(written.result) & np.isfinite(form.result) & known & (error > 2.0 ** (format_.mantissa + 2))
    most, most_written = error.max(1), error_written.max(1)
    worse = bool(np.any(lost)) or bool(np.any(error > np.maximum(error_written, FLOOR)))
    enough = np.count_nonzero(known.any(1)) >= _FEWEST
    return TrialOutcome(bool(np.any(most_written > GAIN * np.maximum(most, FLOOR))), worse or not enough)


def _some_of(indices: np.ndarray) -> list[tuple[int, int]]:
    return [(int(row), int(place)) for row, place in indices[evenly_spread(len(indices), _MOST_DISPUTED)]]


def keeps_special_values(form: Floats, written: Floats, format_: Format) -> bool:
    """Whether a form agrees at infinities and NaN with the formula as written, except where that is NaN."""
    close = _close(form, written, 64 * 2.0**-format_.mantissa * np.fmax(np.abs(written), 1.0))
    return bool(np.all(np.isnan(written) | close))


def _close(a: Floats, b: Floats, within: Floats) -> Mask:
    with np.errstate(invalid="ignore"):
        close: Mask = (a == b) | (np.isfinite(b) & (np.abs(a - b) <= within))
    return close


def _settled(way: Evaluation, single: Format) -> Mask:
    """Points where an evaluation agrees in float32 and float64, as far as their ranges allow."""
    with np.errstate(invalid="ignore"):
        narrow, wide = (np.clip(x, -single.largest, single.largest) for x in (way.narrow, way.wide))
    near = _close(narrow, wide, _SETTLED * np.abs(wide) + single.smallest_normal)
    settled: Mask = near & np.isfinite(way.wide) & (way.wide != 0)
    return settled


def _trial_error(got: Floats, truth: Floats, known: Mask, format_: Format) -> Floats:
    """Errors in ulp, infinite for a NaN or infinity; 0 below the normal numbers and where nothing is known.

    Beyond the largest number that, or infinity, is right.
    """
    size = np.abs(truth)
    beyond = size > format_.largest
    with np.errstate(invalid="ignore", over="ignore"):
        wrong = np.isnan(got) | (np.isinf(got) & ~(beyond & (np.sign(got) == np.sign(truth))))
        a, b = (np.clip(x, -format_.largest, format_.largest) for x in (got, truth))
        error = np.ldexp(np.abs(a - b), -format_.ulp_exponent(truth))
    error = np.where(size < format_.smallest_normal, 0.0, error)
    return np.where(known & ~np.isnan(truth), np.where(wrong, np.inf, error), 0.0)
