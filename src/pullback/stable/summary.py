"""Summaries of errors: the largest and its point, the mean, the number of bad ones. Summaries add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from pullback.stable.formats import Floats, Mask, widened
from pullback.stable.oracle import Truth
from pullback.stable.ulp import Errors

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
        """Return the summary that `dataclasses.asdict` took apart."""
        parts = {name: Spurious(**fields[name]) for name in ("nan", "inf", "zero")}
        worst = fields["worst"]
        return cls(**{**fields, **parts, "worst": None if worst is None else Worst(**worst)})


def summary(found: Errors, points: Mapping[str, Floats], computed: torch.Tensor, truth: Truth) -> Summary:
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
