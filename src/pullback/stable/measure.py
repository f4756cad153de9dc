"""Errors of computed values in units in the last place (ulp), and their summaries.

Conventions. The error is |computed − exact| in ulp of the exact value: the spacing of the numbers of its binade, once
it is rounded to float64 (Muller, "On the definition of ulp(x)", INRIA RR-5504, 2005, compares the alternatives). It is
stated where the exact value is a normal number or larger; there ±∞ counts as the number after the largest finite one,
so that beyond it ±∞ is right and the largest number one ulp off. NaN where there is an exact value, ±∞ where that is in
range or of the other sign, and 0 where it is a normal number, are *spurious*: counted apart, they enter neither the
largest error nor the mean. Where the exact value is below the normal numbers, 0 included, the error is stated apart, in
the distance between subnormals.

Summaries of disjoint sets of points add up, so that a measurement can be split among processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pullback.stable.formats import Floats, Mask, format_of, widened
from pullback.stable.formula import Formula, Quantity
from pullback.stable.oracle.balls import NEGLIGIBLE
from pullback.stable.oracle.values import Truth, exact, root_between
from pullback.stable.sampling import Domain, points_near, sample_points
from pullback.stable.term import Term


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors, point by point.

    Attributes:
        ulp: error in ulp, and where `subnormal` holds in distances between subnormals; 0 where no error is stated.
        subnormal: whether the exact value is below the normal numbers.
        stated: whether `ulp` is an error: there is an exact value, and the computed one is not spurious.
        nan: whether NaN was computed where there is an exact value.
        inf: whether ±∞ was computed where it is not right.
        zero: whether 0 was computed where the exact value is a normal number or larger.
        undecided: whether the exact value could not be computed.
        undefined: whether the point has no exact value.
    """

    ulp: Floats
    subnormal: Mask
    stated: Mask
    nan: Mask
    inf: Mask
    zero: Mask
    undecided: Mask
    undefined: Mask

    @property
    def spurious(self) -> Mask:
        """Whether a computed value is a spurious NaN, infinity or zero."""
        return self.nan | self.inf | self.zero

    def worst(self, other: Errors) -> Errors:
        """Worse of two, computed at the same points, point by point."""
        return Errors(
            np.maximum(self.ulp, other.ulp),
            self.subnormal,
            self.stated & other.stated,
            self.nan | other.nan,
            self.inf | other.inf,
            self.zero | other.zero,
            self.undecided,
            self.undefined,
        )


def errors(computed: torch.Tensor, truth: Truth) -> Errors:
    """Errors of computed values, in their format, against exact ones: |value − (high + low)| / ulp(high).

    Numbers beyond the largest count as the next one would, 2^(max_exponent + 1), so that rounding to it and overflow
    are errors of ulps.

    Raises:
        OptionError: if their dtype is not one of the formats.
    """
    form, got = format_of(computed.dtype), widened(computed)
    undecided = np.asarray(truth.undecided, dtype=np.bool_)
    undefined = np.isnan(truth.high) & ~undecided
    defined = ~undefined & ~undecided
    size = np.abs(truth.high)
    beyond = defined & (size > form.largest)
    subnormal = defined & (size < form.smallest_normal)
    infinite = np.isinf(got)
    nan = defined & np.isnan(got)
    inf = defined & infinite & ~(beyond & (np.sign(got) == np.sign(truth.high)))
    zero = defined & (got == 0) & ~subnormal
    stated = defined & ~(nan | inf | zero)
    # Scaled by 2^−unit the exact value is at most 2^(mantissa + 1), and 1 is an ulp. Scaling is exact, save for a value
    # that is wrong by many binades. If value and `high` are within a factor of 2, their difference is exact (Sterbenz'
    # lemma); otherwise 2⁻⁵³ of the error is lost. `low`, at most half an ulp of float64, enters last, since high + low
    # has more digits than float64 holds.
    unit = form.ulp_exponent(truth.high)
    after_largest = 2.0 ** (form.mantissa + 1)  # the largest number is one ulp less: (2 − 2^−mantissa) 2^mantissa
    with np.errstate(over="ignore", invalid="ignore"):
        exact = np.clip(np.ldexp(truth.high, -unit), -after_largest, after_largest)
        rest = np.where(np.abs(exact) == after_largest, 0.0, np.ldexp(truth.low, -unit))
        value = np.where(infinite, np.sign(got) * after_largest, np.ldexp(got, -unit))
        error = np.where(stated, np.abs((value - exact) - rest), 0.0)
    most = np.finfo(np.float64).max
    return Errors(np.minimum(error, most), subnormal, stated, nan, inf, zero, undecided, undefined)


Point = dict[str, float]
"""A value for each variable."""

_MANY = 4.0


@dataclass(frozen=True, slots=True)
class Worst:
    """The point of the largest error.

    Attributes:
        point: its coordinates.
        got: the computed value.
        exact: the exact value, rounded to float64.
    """

    point: Point
    got: float
    exact: float


@dataclass(frozen=True, slots=True)
class Spurious:
    """Values of one kind that should not be.

    Attributes:
        count: how many.
        start: the point nearest to 0 that has one; `None` if there is none.
    """

    count: int = 0
    start: Point | None = None

    def __add__(self, other: Spurious) -> Spurious:
        starts = [s.start for s in (self, other) if s.start is not None]
        return Spurious(self.count + other.count, min(starts, key=_distance, default=None))


@dataclass(frozen=True, slots=True)
class Summary:
    """Errors of many points.

    Attributes:
        points: points whose exact value is a normal number or larger.
        measured: those of them whose value is not spurious.
        max_ulp: the largest error of those measured, in ulp.
        worst: its point.
        total_ulp: the sum of these errors.
        above_4: number of points above 4 ulp or spurious.
        nan: NaN where there is an exact value.
        inf: wrong ±∞.
        zero: 0 where the exact value is a normal number or larger.
        subnormal_points: points whose exact value is below the normal numbers.
        max_subnormal: the largest error there, in distances between subnormals.
        undefined: points without an exact value; they do not count.
        undecided: points whose exact value could not be computed; they do not count either.
    """

    points: int = 0
    measured: int = 0
    max_ulp: float = 0.0
    worst: Worst | None = None
    total_ulp: float = 0.0
    above_4: int = 0
    nan: Spurious = field(default_factory=Spurious)
    inf: Spurious = field(default_factory=Spurious)
    zero: Spurious = field(default_factory=Spurious)
    subnormal_points: int = 0
    max_subnormal: float = 0.0
    undefined: int = 0
    undecided: int = 0

    @property
    def mean_ulp(self) -> float:
        """The mean error of the points measured; 0 if there is none."""
        return self.total_ulp / self.measured if self.measured else 0.0

    @property
    def clean(self) -> bool:
        """Whether there is no spurious NaN, infinity or zero."""
        return not (self.nan.count or self.inf.count or self.zero.count)

    def __add__(self, other: Summary) -> Summary:
        larger = self if self.max_ulp >= other.max_ulp and self.worst is not None else other
        return Summary(
            self.points + other.points,
            self.measured + other.measured,
            larger.max_ulp,
            larger.worst,
            self.total_ulp + other.total_ulp,
            self.above_4 + other.above_4,
            self.nan + other.nan,
            self.inf + other.inf,
            self.zero + other.zero,
            self.subnormal_points + other.subnormal_points,
            max(self.max_subnormal, other.max_subnormal),
            self.undefined + other.undefined,
            self.undecided + other.undecided,
        )

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Summary:
        """Summary from the dictionary that `dataclasses.asdict` made of one."""
        parts = {name: Spurious(**fields[name]) for name in ("nan", "inf", "zero")}
        worst = fields["worst"]
        return cls(**{**fields, **parts, "worst": None if worst is None else Worst(**worst)})


def summary_of(found: Errors, points: Mapping[str, Floats], computed: torch.Tensor, truth: Truth) -> Summary:
    """Summarise the errors of values computed at some points."""
    counted = ~(found.subnormal | found.undefined | found.undecided)
    stated = counted & found.stated
    ulp = np.where(stated, found.ulp, 0.0)
    at = int(np.argmax(np.where(stated, found.ulp, -1.0))) if stated.any() else None
    below = found.subnormal & found.stated
    return Summary(
        int(counted.sum()),
        int(stated.sum()),
        0.0 if at is None else float(found.ulp[at]),
        None if at is None else Worst(_point(points, at), float(widened(computed[at])), float(truth.high[at])),
        float(ulp.sum()),
        int(((ulp > _MANY) | (counted & found.spurious)).sum()),
        _spurious(found.nan, points),
        _spurious(found.inf, points),
        _spurious(found.zero, points),
        int(found.subnormal.sum()),
        float(np.max(found.ulp, where=below, initial=0.0)),
        int(found.undefined.sum()),
        int(found.undecided.sum()),
    )


def _spurious(mask: Mask, points: Mapping[str, Floats]) -> Spurious:
    where = np.flatnonzero(mask)
    if not len(where):
        return Spurious()
    distance = np.max([np.abs(x[where]) for x in points.values()], axis=0)
    return Spurious(len(where), _point(points, int(where[np.argmin(distance)])))


def _point(points: Mapping[str, Floats], at: int) -> Point:
    return {name: float(x[at]) for name, x in points.items()}


def _distance(point: Point) -> float:
    return max(map(abs, point.values()))


_ROOTS = 8
_FAR = 1e6
"""Largest magnitude at which roots are searched: those of periodic functions are denser than the sample beyond."""

Columns = Mapping[str, Floats]
"""For each variable its values at some points."""


def measure(formula: Formula, terms: Mapping[Quantity, Term], dtype: torch.dtype, at: Columns) -> list[Summary]:
    """Errors of each quantity at some points of a dtype."""
    truths = exact(list(terms.values()), at, _negligible(dtype))
    return summarise(run_layouts(formula, terms, dtype, at), truths, at)


def measure_sample(
    formula: Formula, terms: Mapping[Quantity, Term], dtype: torch.dtype, seed: int, domain: Domain | None
) -> list[Summary]:
    """Errors of each quantity on a sample, with a closer look at where it is worst and at roots."""
    names = formula.variables
    at = sample_points(names, dtype, seed, domain)
    truths = exact(list(terms.values()), at, _negligible(dtype))
    found = summarise(run_layouts(formula, terms, dtype, at), truths, at)
    near = [point for s in found for point in _wrong_points(s)]
    if len(names) == 1:
        near += [p for term, truth in zip(terms.values(), truths, strict=True) for p in _root_points(term, truth, at)]
    closer = points_near(near, names, dtype, seed, domain)
    if len(names) == 1:  # points in both sets would count twice
        (name,) = names
        closer = {name: np.setdiff1d(closer[name], at[name])}
    if not len(closer[names[0]]):
        return found
    return [a + b for a, b in zip(found, measure(formula, terms, dtype, closer), strict=True)]


def _negligible(dtype: torch.dtype) -> float:
    """Magnitude below which errors in a dtype need no exact digits."""
    return 2.0**-1074 if dtype == torch.float64 else NEGLIGIBLE


def run_layouts(
    formula: Formula, terms: Mapping[Quantity, Term], dtype: torch.dtype, at: Columns
) -> list[list[Tensor]]:
    """Compute each quantity on contiguous and on strided tensors.

    PyTorch's kernels use vector instructions for the first and scalar ones for the second, which may differ in bits.
    """
    order = max(len(quantity.by) for quantity in terms)
    tensors = [torch.from_numpy(at[name]).to(dtype) for name in formula.variables]
    strided = [torch.stack([x, x], dim=1)[:, 0] for x in tensors]
    results = [formula.run(xs, order) for xs in (tensors, strided)]
    return [[result[quantity] for result in results] for quantity in terms]


def summarise(computed: list[list[Tensor]], truths: list[Truth], at: Columns) -> list[Summary]:
    """Errors of each quantity, the larger one at each point if it was computed in several ways."""
    found = []
    for ways, truth in zip(computed, truths, strict=True):
        worst = ways[0]
        for other in ways[1:]:
            worst = _pointwise_worse(worst, other, truth)
        found.append(summary_of(errors(worst, truth), at, worst, truth))
    return found


def _pointwise_worse(a: Tensor, b: Tensor, truth: Truth) -> Tensor:
    """Of two tensors of values the one that is further off, point by point."""
    at = torch.nonzero((a != b) & ~(a.isnan() & b.isnan()))[:, 0]
    here = at.numpy()
    there = Truth(truth.high[here], truth.low[here], truth.undecided[here])
    worse = _severity(errors(b[at], there)) > _severity(errors(a[at], there))
    return a.index_copy(0, at[torch.from_numpy(worse)], b[at][torch.from_numpy(worse)])


def _severity(found: Errors) -> Floats:
    badness: Floats = np.where(found.spurious, np.inf, found.ulp)
    return badness


def _wrong_points(found: Summary) -> list[Point]:
    """Points at which a summary has its largest error or spurious values."""
    worst = [] if found.worst is None else [found.worst.point]
    return worst + [s.start for s in (found.nan, found.inf, found.zero) if s.start is not None]


def _root_points(term: Term, truth: Truth, at: Columns) -> list[Point]:
    """Roots nearest to 0 of a term of one variable, between points of opposite sign."""
    ((name, x),) = at.items()
    sign = np.sign(truth.high)
    known = np.flatnonzero(np.isfinite(truth.high) & (np.abs(x) < _FAR))
    brackets = [(i, j) for i, j in pairwise(known) if sign[i] * sign[j] < 0]
    brackets.sort(key=lambda pair: abs(x[pair[0]]))
    found = []
    for i, j in brackets[:_ROOTS]:
        try:
            high, low = root_between(term, name, float(x[i]), float(x[j]))
        except ValueError:  # a pole or a jump
            continue
        found.append({name: high + low})
    return found
