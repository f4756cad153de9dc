"""Samples that a search works on: points with the exact value of its target."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pullback.stable.formats import Floats, format_of
from pullback.stable.oracle import exact
from pullback.stable.sampling import Domain, every, points
from pullback.stable.term import Term, topological

_NEAR, _PAIRS, _BISECTIONS = 200.0, 100, 30
"""Range of magnitudes, number of lines, and bisections with which sign changes are searched."""
REGION = 16
"""Number of samples in a region; implementations are compared by region."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Points, sorted by the first variable, where a target has a value.

    Attributes:
        points: of each variable its values.
        exact: of the target at these points, rounded to float64.
    """

    points: Mapping[str, Floats]
    exact: Floats

    def __len__(self) -> int:
        return len(self.exact)

    def at(self, rows: np.ndarray) -> Samples:
        """Return some of the samples, in the order of `rows`."""
        return Samples({name: x[rows] for name, x in self.points.items()}, self.exact[rows])

    def tensors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the points as tensors."""
        return {name: torch.from_numpy(x).to(dtype) for name, x in self.points.items()}

    def and_(self, more: Samples) -> Samples:
        """Return these and more, sorted."""
        joined = self.followed_by(more)
        return joined.at(np.argsort(next(iter(joined.points.values())), kind="stable"))

    def followed_by(self, more: Samples) -> Samples:
        """Return these, then more."""
        both = {name: np.concatenate([x, more.points[name]]) for name, x in self.points.items()}
        return Samples(both, np.concatenate([self.exact, more.exact]))

    def thinned(self, count: int) -> Samples:
        """Return about `count` of the samples, evenly taken."""
        step = max(1, len(self) // count)
        return self.at(np.arange(0, len(self), step))

    def in_regions(self, count: int) -> Samples:
        """Return about `count` of the samples in regions: neighbours are similar in every variable."""
        count = max(1, min(count, len(self)) // REGION) * REGION
        rows = np.sort(np.resize(np.unique(np.linspace(0, len(self) - 1, count).astype(int)), count))
        axes = [x[rows] for x in self.points.values()]
        bins = [(np.argsort(np.argsort(x, kind="stable")) * 6) // count for x in axes[:-1]]
        return self.at(rows[np.lexsort((axes[-1], *bins[::-1]))])

    def whole_regions(self) -> Samples:
        """Return the samples, some of them twice if need be for whole regions."""
        return self.at(np.sort(np.resize(np.arange(len(self)), -(-len(self) // REGION) * REGION)))


def samples(target: Term, at: Mapping[str, Floats]) -> Samples:
    """Return the points at which a target has a value."""
    value = exact([target], at)[0].high
    rows = np.flatnonzero(~np.isnan(value))
    return Samples(at, value).at(rows[np.argsort(next(iter(at.values()))[rows], kind="stable")])


def sampled(
    target: Term,
    names: Sequence[str],
    dtype: torch.dtype,
    seed: int,
    domain: Domain,
    near: Sequence[Mapping[str, float]] = (),
) -> Samples:
    """Return samples over the whole range, and closely around some points; of one 16-bit variable every number."""
    if dtype.itemsize == 2 and len(names) == 1:
        low, high = domain.get(names[0], (-np.inf, np.inf))
        x = every(dtype)
        return samples(target, {names[0]: x[(x >= low) & (x <= high)]})
    found = samples(target, points(names, dtype, seed, domain, [*near, *_turns(target, names)]))
    return found if len(names) == 1 else found.and_(_crossings(target, found, dtype, seed))


def _crossings(target: Term, found: Samples, dtype: torch.dtype, seed: int) -> Samples:
    """Return samples on the way to where a target of several variables changes its sign: bisection of pairs."""
    near = np.max([np.abs(x) for x in found.points.values()], axis=0) < _NEAR
    random, columns = np.random.default_rng(seed), np.stack(list(found.points.values()))
    sides = [np.flatnonzero(near & (sign * found.exact > 0)) for sign in (1, -1)]
    if not all(map(len, sides)):
        return found.at(np.empty(0, int))
    above, below = (columns[:, random.choice(side, _PAIRS)] for side in sides)
    ways = []
    for _ in range(_BISECTIONS):
        middle = format_of(dtype).round((above + below) / 2)
        at = dict(zip(found.points, middle, strict=True))
        value = exact([target], at)[0].high
        ways.append(Samples(at, value).at(np.flatnonzero(~np.isnan(value))))
        above, below = np.where(value > 0, middle, above), np.where(value < 0, middle, below)
    return functools.reduce(Samples.followed_by, ways)


def _turns(target: Term, names: Sequence[str]) -> list[dict[str, float]]:
    """Return the first multiples of π/2 for circular functions of one variable, which vanish and cancel there."""
    if len(names) > 1 or not any(t.op in ("sin", "cos", "tan") for t in topological([target])):
        return []
    return [{names[0]: k * np.pi / 2} for k in range(-16, 17) if k]
