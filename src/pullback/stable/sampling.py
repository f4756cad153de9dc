"""Points to measure at: every number of a 16-bit format; of wider ones a sample that does not miss the edges.

A sample of one variable has every power of two, numbers close to ±1, windows of consecutive numbers at thresholds
(where exp overflows or underflows, where a sum with 1 no longer changes, at the ends of the domain), random bit
patterns and random reals. Samples of several variables pair such numbers, among them equal, opposite and neighbouring
ones. The same seed gives the same points.

`TargetSamples` are points with the exact value of a target, for a search to work on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pullback.errors import OptionError
from pullback.stable.formats import Floats, Format, format_of
from pullback.stable.oracle.values import exact
from pullback.stable.term import Term, topological

Domain = Mapping[str, tuple[float, float]]
"""For a variable the closed interval that it is taken from; all numbers where it has none."""

_PATTERNS = 6000
_REALS = ((1.2, 4000), (10.0, 3000), (120.0, 4000))
"""Half-widths of the intervals around 0 from which reals are drawn uniformly, and how many."""
_WINDOW = 64
_JOINT, _KINDS = 24000, (0.4, 0.4, 0.2)
"""Number of points of several variables, and the share of each kind."""


def checked_domain(name: str, variables: Sequence[str], domain: Domain | None) -> dict[str, tuple[float, float]]:
    """Validated domain of a formula's variables.

    Raises:
        OptionError: if it is empty, or of a variable that the formula does not have.
    """
    limits = {}
    for variable, (low, high) in (domain or {}).items():
        if variable not in variables:
            known = ", ".join(variables)
            raise OptionError(f"{name} has no variable {variable!r} for the domain; it has {known}")
        if not low <= high:
            raise OptionError(f"the domain of {variable} is empty: {low} to {high}")
        limits[variable] = (float(low), float(high))
    return limits


def every_number(dtype: torch.dtype) -> Floats:
    """Every finite number of a 16-bit format, in order; 0 and −0 both."""
    form = format_of(dtype)
    last = int(form.ordinal(np.array([form.largest]))[0])
    values = form.at_ordinal(np.arange(-last, last + 1))
    return np.insert(values, last, -0.0)


def window(center: float, count: int, dtype: torch.dtype) -> Floats:
    """`count` consecutive finite numbers of a format around a point."""
    form = format_of(dtype)
    middle = int(form.ordinal(form.round(np.array([center])))[0])
    values = form.at_ordinal(np.arange(middle - count // 2, middle - count // 2 + count))
    return values[np.isfinite(values)]


def sample_points(
    variables: Sequence[str],
    dtype: torch.dtype,
    seed: int = 0,
    domain: Domain | None = None,
    near: Iterable[Mapping[str, float]] = (),
) -> dict[str, Floats]:
    """Points of a format to measure at, as one array for each variable.

    Args:
        variables: their names.
        dtype: dtype of the points.
        seed: seed of the random ones.
        domain: domain of the points.
        near: points with denser sampling around them.

    Raises:
        OptionError: if the dtype is not one of the formats.
    """
    form, intervals = format_of(dtype), _intervals(variables, domain)
    random = np.random.default_rng(seed)
    lines = [_line(form, interval, random) for interval in intervals]
    rows = lines[0][:, None] if len(lines) == 1 else _paired(form, lines, intervals, random)
    return _columns(variables, np.concatenate([rows, *_around(form, variables, near, random)]), form, intervals)


def points_near(
    near: Iterable[Mapping[str, float]],
    variables: Sequence[str],
    dtype: torch.dtype,
    seed: int = 0,
    domain: Domain | None = None,
) -> dict[str, Floats]:
    """Points of a format around some points alone, arguments as for `sample_points`."""
    form, random = format_of(dtype), np.random.default_rng(seed)
    rows = np.concatenate([np.empty((0, len(variables))), *_around(form, variables, near, random)])
    return _columns(variables, rows, form, _intervals(variables, domain))


def thresholds(form: Format) -> list[float]:
    """Positive numbers at which common formulas change regime in a format: overflow, underflow, absorption by 1."""
    # As multiples of ln 2, with p digits and the smallest subnormal 2^smallest: eˣ overflows from 2^(max_exponent + 1)
    # on; e⁻ˣ is subnormal below 2^min_exponent, and rounds to 0 from half of the smallest number on. 1 + e⁻ˣ rounds to
    # 1 where e⁻ˣ ≤ 2⁻ᵖ, half the distance to the next number; 1 − e⁻ˣ where e⁻ˣ ≤ 2^(−p − 1), since numbers below 1
    # are twice as dense. 1 − tanh x ≈ 2 e^(−2x) is that small from x = (p/2 + 1) ln 2 on.
    p, smallest = form.mantissa + 1, form.min_exponent - form.mantissa
    exponents = [form.max_exponent + 1, -form.min_exponent, -smallest, 1 - smallest, p - 1, p, p + 1, p / 2 + 1]
    exponential = [math.log(2) * k for k in exponents]
    gaussian = [math.sqrt(2 * x) for x in exponential]  # of exp(−x²/2), and over √2 of exp(−x²)
    # where x² overflows, where it is subnormal, and where 1 + x and 1 + x² round to 1
    powers = [2.0 ** ((form.max_exponent + 1) / 2), 2.0 ** (form.min_exponent / 2), 2.0**-p, 2.0 ** (-p / 2)]
    return [*exponential, *(x / 2 for x in exponential), *gaussian, *(x / math.sqrt(2) for x in gaussian), *powers]


def _intervals(variables: Sequence[str], domain: Domain | None) -> list[tuple[float, float]]:
    return [(domain or {}).get(name, (-math.inf, math.inf)) for name in variables]


def _columns(
    variables: Sequence[str], rows: Floats, form: Format, intervals: list[tuple[float, float]]
) -> dict[str, Floats]:
    """Finite points of the domain, without repeats, as an array for each variable; −0 beside 0."""
    rows = form.round(rows)
    inside = [np.isfinite(x) & (x >= low) & (x <= high) for x, (low, high) in zip(rows.T, intervals, strict=True)]
    rows = np.unique(rows[np.logical_and.reduce(inside)], axis=0)
    if len(variables) == 1 and 0.0 in rows:
        rows = np.insert(rows, np.searchsorted(rows[:, 0], 0.0), -0.0, axis=0)
    return dict(zip(variables, map(np.ascontiguousarray, rows.T), strict=True))


def _line(form: Format, interval: tuple[float, float], random: np.random.Generator) -> Floats:
    """Sample of one variable."""
    low, high = interval
    ends = [x for x in interval if math.isfinite(x)]
    edges = [s * t for t in thresholds(form) for s in (1, -1)]
    parts = [
        *(window(x, _WINDOW, form.dtype) for x in (*edges, *ends)),
        *_regular(form),
        _spread(form, interval, random, _PATTERNS),
        *(random.uniform(a, b, count) for a, b, count in _windows(low, high)),
    ]
    values = np.concatenate(parts)
    return values[(values >= low) & (values <= high)]


def _regular(form: Format) -> list[Floats]:
    """Zero, the powers of two with a neighbour, numbers close to ±1, and the largest."""
    powers = np.ldexp(1.0, np.arange(form.min_exponent - form.mantissa, form.max_exponent + 1))
    steps = np.ldexp(1.0, -np.arange(1, form.mantissa + 2))
    positive = np.concatenate([powers, powers * (1 + 2.0**-form.mantissa), 1 + steps, 1 - steps, [form.largest]])
    return [np.zeros(1), positive, -positive]


def _spread(form: Format, interval: tuple[float, float], random: np.random.Generator, count: int) -> Floats:
    """Random numbers of a format between two ends; all bit patterns are equally likely."""
    ends = np.clip(np.array(interval), -form.largest, form.largest)
    low, high = form.ordinal(form.round(ends))
    return form.at_ordinal(random.integers(low, high, count, endpoint=True))


def _windows(low: float, high: float) -> list[tuple[float, float, int]]:
    """Intervals within the domain to draw reals from, and how many to draw."""
    around = [(max(low, -half), min(high, half), count) for half, count in _REALS]
    whole = [(low, high, _REALS[0][1])] if math.isfinite(high - low) else []
    return [(a, b, count) for a, b, count in (*around, *whole) if a < b]


def _special(form: Format, low: float, high: float) -> Floats:
    """Numbers close to 0, ±1 and the ends of an interval."""
    steps = np.ldexp(1.0, -np.arange(1, form.mantissa + 2))
    ends = [window(x, _WINDOW, form.dtype) for x in (low, high) if math.isfinite(x)]
    values = np.concatenate([np.zeros(1), 1 - steps, 1 + steps, steps - 1, -1 - steps, *ends])
    inside: Floats = values[(values >= low) & (values <= high)]
    return inside if len(inside) else np.array([form.largest if low > 1 else -form.largest])


def _paired(
    form: Format, lines: list[Floats], intervals: list[tuple[float, float]], random: np.random.Generator
) -> Floats:
    """Points of several variables, a row each; in some of them two variables are related.

    Each variable is at random a number of its line, a real of the widest window, or close to ±1, 0 or an end.
    """
    half = _REALS[-1][0]
    columns = []
    for line, (low, high) in zip(lines, intervals, strict=True):
        reals = random.uniform(max(low, -half), min(high, half), _JOINT) if max(low, -half) < min(high, half) else line
        kinds = [random.choice(part, _JOINT) for part in (line, reals, _special(form, low, high))]
        columns.append(np.choose(random.choice(3, _JOINT, p=_KINDS), kinds))
    rows = form.round(np.stack(columns, axis=1))
    for first, second in zip(range(len(lines) - 1), range(1, len(lines)), strict=True):
        equal, opposite, close, smaller, zero, zeros, *_ = np.array_split(random.permutation(_JOINT), 8)
        x = rows[:, first]
        rows[equal, second] = x[equal]
        rows[opposite, second] = -x[opposite]
        rows[close, second] = form.at_ordinal(form.ordinal(x[close]) + random.integers(-64, 65, len(close)))
        rows[smaller, second] = x[smaller] * np.ldexp(1.0, -random.integers(1, form.mantissa + 4, len(smaller)))
        rows[zero, first], rows[zeros, second] = 0.0, 0.0
    return rows


def _around(
    form: Format, variables: Sequence[str], near: Iterable[Mapping[str, float]], random: np.random.Generator
) -> list[Floats]:
    """Rows close to some points: of one variable consecutive numbers, of several random ones."""
    count = 4 * _WINDOW
    found = []
    for point in near:
        center = form.ordinal(form.round(np.array([point[name] for name in variables])))
        steps = random.integers(-64, 65, (count, len(center)))
        if len(center) == 1:
            steps = np.arange(-count // 2, count // 2)[:, None]
        found.append(form.at_ordinal(center + steps))
    return found


_CROSSING_RANGE, _PAIRS, _BISECTIONS = 200.0, 100, 30
"""Range of magnitudes, number of lines, and bisections with which sign changes are searched."""
REGION = 16
"""Number of samples in a region; implementations are compared by region."""


@dataclass(frozen=True, slots=True)
class TargetSamples:
    """Points, sorted by the first variable, where a target has a value.

    Attributes:
        points: the values of each variable.
        exact: exact values of the target at these points, rounded to float64.
    """

    points: Mapping[str, Floats]
    exact: Floats

    def __len__(self) -> int:
        return len(self.exact)

    def at(self, rows: np.ndarray) -> TargetSamples:
        """Return some of the samples, in the order of `rows`."""
        return TargetSamples({name: x[rows] for name, x in self.points.items()}, self.exact[rows])

    def tensors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Points as tensors."""
        return {name: torch.from_numpy(x).to(dtype) for name, x in self.points.items()}

    def merged_with(self, more: TargetSamples) -> TargetSamples:
        """These and more samples, sorted by the first variable."""
        joined = self.concatenated_with(more)
        return joined.at(np.argsort(next(iter(joined.points.values())), kind="stable"))

    def concatenated_with(self, more: TargetSamples) -> TargetSamples:
        """These samples, then more, in this order."""
        both = {name: np.concatenate([x, more.points[name]]) for name, x in self.points.items()}
        return TargetSamples(both, np.concatenate([self.exact, more.exact]))

    def thinned(self, count: int) -> TargetSamples:
        """About `count` of the samples, at even steps."""
        step = max(1, len(self) // count)
        return self.at(np.arange(0, len(self), step))

    def in_regions(self, count: int) -> TargetSamples:
        """About `count` of the samples in whole regions: neighbours are similar in every variable."""
        count = max(1, min(count, len(self)) // REGION) * REGION
        rows = np.sort(np.resize(np.unique(np.linspace(0, len(self) - 1, count).astype(int)), count))
        axes = [x[rows] for x in self.points.values()]
        # Ranks of the first variables in six bins each, and within these the last variable in order: sixteen successive
        # samples are then a box.
        bins = [(np.argsort(np.argsort(x, kind="stable")) * 6) // count for x in axes[:-1]]
        return self.at(rows[np.lexsort((axes[-1], *bins[::-1]))])

    def whole_regions(self) -> TargetSamples:
        """Samples, some of them twice if need be for whole regions."""
        return self.at(np.sort(np.resize(np.arange(len(self)), -(-len(self) // REGION) * REGION)))


def samples_at(target: Term, at: Mapping[str, Floats]) -> TargetSamples:
    """Points at which a target has a value."""
    value = exact([target], at)[0].high
    rows = np.flatnonzero(~np.isnan(value))
    return TargetSamples(at, value).at(rows[np.argsort(next(iter(at.values()))[rows], kind="stable")])


def sample_target(
    target: Term,
    names: Sequence[str],
    dtype: torch.dtype,
    seed: int,
    domain: Domain,
    near: Sequence[Mapping[str, float]] = (),
) -> TargetSamples:
    """Samples over the whole range, and denser around some points; of one 16-bit variable every number."""
    if dtype.itemsize == 2 and len(names) == 1:
        low, high = domain.get(names[0], (-np.inf, np.inf))
        x = every_number(dtype)
        return samples_at(target, {names[0]: x[(x >= low) & (x <= high)]})
    found = samples_at(target, sample_points(names, dtype, seed, domain, [*near, *_quarter_periods(target, names)]))
    return found if len(names) == 1 else found.merged_with(_sign_crossings(target, found, dtype, seed))


def _sign_crossings(target: Term, found: TargetSamples, dtype: torch.dtype, seed: int) -> TargetSamples:
    """Midpoints of bisections between points of opposite sign: samples that approach zeros of several variables."""
    near = np.max([np.abs(x) for x in found.points.values()], axis=0) < _CROSSING_RANGE
    random, columns = np.random.default_rng(seed), np.stack(list(found.points.values()))
    by_sign = [np.flatnonzero(near & (sign * found.exact > 0)) for sign in (1, -1)]
    if not all(map(len, by_sign)):
        return found.at(np.empty(0, int))
    above, below = (columns[:, random.choice(rows, _PAIRS)] for rows in by_sign)
    ways = []
    for _ in range(_BISECTIONS):
        middle = format_of(dtype).round((above + below) / 2)
        at = dict(zip(found.points, middle, strict=True))
        value = exact([target], at)[0].high
        ways.append(TargetSamples(at, value).at(np.flatnonzero(~np.isnan(value))))
        above, below = np.where(value > 0, middle, above), np.where(value < 0, middle, below)
    return functools.reduce(TargetSamples.concatenated_with, ways)


def _quarter_periods(target: Term, names: Sequence[str]) -> list[dict[str, float]]:
    """First multiples of π/2 for circular functions of one variable, which vanish and cancel there."""
    if len(names) > 1 or not any(t.op in ("sin", "cos", "tan") for t in topological([target])):
        return []
    return [{names[0]: k * np.pi / 2} for k in range(-16, 17) if k]
