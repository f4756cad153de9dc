"""Whether a quick form of a quantity is better than the formula as written, or anywhere worse: without exact values.

The reference is float64. A rule is an equation; so where the form agrees in float32 and in float64 up to rounding, it
does not cancel there, and its float64 value has more correct digits than needed. The same holds where the form and the
formula as written, which are computed differently, agree in float64. A dispute is a point where the formula as written
agrees in float32 and in float64, but not with the form: 1 + eˣ may be 1 in both, or the formula may differ from its
term. An exact value is computed for a few of the disputes; if that fails, the form is refused. Undecided points count
only if the form is NaN or infinite there and the formula as written is finite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pullback.stable.formats import Floats, Format, Mask
from pullback.stable.quick_points import spread

Exact = Callable[[int, int], float | None]

FLOOR = 4.0
"""Error in ulp that is acceptable, whatever the error of the formula as written."""
GAIN = 4.0
"""How many times smaller an error is that makes a form worth its price."""
_SETTLED, _SAME, _DISPUTED = 2.0**-8, 2.0**-30, 2.0**-26
"""Relative differences: between float32 and float64 without cancellation, between two ways that agree, between two
that do not."""
_MOST_DISPUTED = 8
"""Points at which exact values are computed."""
_FEWEST = 12
"""Groups with a settled point, without which nothing is known."""


@dataclass(frozen=True, slots=True)
class Way:
    """Results of one way to compute a quantity at the points: in the format, in float32 and in float64."""

    result: Floats
    narrow: Floats
    wide: Floats


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a form is better than the formula as written in some group of points, and worse in some."""

    better: bool
    worse: bool


def judged(form: Way, written: Way, format_: Format, single: Format, exact: Exact) -> Verdict:
    """Compare a form with the formula as written, at groups of points, one in each row.

    Args:
        form: results of the quick form.
        written: autograd's results for the formula as written.
        format_: of the results.
        single: float32's.
        exact: the value at a point, by its row and place; `None` if it cannot be computed.
    """
    same = _close(form.wide, written.wide, _SAME * np.abs(form.wide))
    ours, theirs = (_settled(way, single) for way in (form, written))
    larger = np.fmax(np.abs(form.wide), np.abs(written.wide))
    disputed = theirs & ~_close(form.wide, written.wide, _DISPUTED * larger) & ~(larger < format_.smallest_normal)
    disputed |= ~(same | ours) & np.isnan(written.result) & np.isfinite(form.result)
    known = (same | ours | theirs) & ~disputed
    truth = np.where(same | ours, form.wide, written.wide)
    for row, place in _some(np.argwhere(disputed)):
        value = exact(row, place)
        if value is None:
            return Verdict(better=False, worse=True)
        known[row, place], truth[row, place] = True, value
    error, error_written = (_error(way.result, truth, known, format_) for way in (form, written))
    lost = ~np.isfinite(form.result) & np.isfinite(written.result) & (~known | np.isinf(error))
    # NaN is better than a number that is several times too large
    lost |= np.isnan(written.result) & np.isfinite(form.result) & known & (error > 2.0 ** (format_.mantissa + 2))
    most, most_written = error.max(1), error_written.max(1)
    worse = bool(np.any(lost)) or bool(np.any(error > np.maximum(error_written, FLOOR)))
    enough = np.count_nonzero(known.any(1)) >= _FEWEST
    return Verdict(bool(np.any(most_written > GAIN * np.maximum(most, FLOOR))), worse or not enough)


def _some(places: np.ndarray) -> list[tuple[int, int]]:
    return [(int(row), int(place)) for row, place in places[spread(len(places), _MOST_DISPUTED)]]


def keeps_special(form: Floats, written: Floats, format_: Format) -> bool:
    """Whether a form agrees at infinities and NaN with the formula as written, except where that is NaN."""
    close = _close(form, written, 64 * 2.0**-format_.mantissa * np.fmax(np.abs(written), 1.0))
    return bool(np.all(np.isnan(written) | close))


def _close(a: Floats, b: Floats, within: Floats) -> Mask:
    with np.errstate(invalid="ignore"):
        close: Mask = (a == b) | (np.isfinite(b) & (np.abs(a - b) <= within))
    return close


def _settled(way: Way, single: Format) -> Mask:
    """Return where a way gives the same in float32 and float64, as far as their ranges allow."""
    with np.errstate(invalid="ignore"):
        narrow, wide = (np.clip(x, -single.largest, single.largest) for x in (way.narrow, way.wide))
    near = _close(narrow, wide, _SETTLED * np.abs(wide) + single.smallest_normal)
    settled: Mask = near & np.isfinite(way.wide) & (way.wide != 0)
    return settled


def _error(got: Floats, truth: Floats, known: Mask, format_: Format) -> Floats:
    """Return errors in ulp, infinite for a NaN or infinity; 0 below the normal numbers and where nothing is known.

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
