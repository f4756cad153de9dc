"""Roots, poles and holes of a term of one variable, of odd or even order: errors are largest there.

Roots and poles are found from samples of the term; holes show in none, so that they are found from the subterms at
whose zeros an op is singular.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pullback.stable.evaluate import evaluate_all
from pullback.stable.formats import Floats, Ordinals, format_of
from pullback.stable.oracle import exact
from pullback.stable.samples import Samples, samples
from pullback.stable.sampling import Domain
from pullback.stable.singular import singular_at
from pullback.stable.term import Term

_MOST = 12
"""Places of a kind, the nearest to 0: a periodic function has infinitely many."""
_GRID = np.linspace(-128.0, 128.0, 2049)
"""Further points of singular subterms besides the samples, which end at the ends of the domain."""
_PARTS, _ROUNDS = 16, 7  # 16⁷: more numbers than lie between two samples
_ASIDE, _DEEP = 2**16, 8
"""Offset from a root or pole of even order, in steps, and by how many powers of two a term changes over it."""


def critical(target: Term, name: str, known: Samples, dtype: torch.dtype) -> list[float]:
    """Return numbers next to roots and poles of a term of one variable, and next to zeros at which it is singular.

    Args:
        target: the term.
        name: its variable.
        known: samples of it; a zero between two samples with no sign in either is not found.
        dtype: of the numbers.
    """
    x, value = known.points[name], known.exact
    with np.errstate(divide="ignore"):
        size = np.log2(np.abs(value)).clip(-2000, 2000)
    flips = np.flatnonzero(np.sign(value[:-1]) * np.sign(value[1:]) < 0)
    found = _narrowed(target, name, dtype, x[flips], x[flips + 1], "flip")
    for kind, height in (("dip", -size), ("peak", size)):
        before, after = height[1:-1] - height[:-2], height[1:-1] - height[2:]
        tops = 1 + np.flatnonzero((before > 0) & (after > 0) & (before + after > 0.5))
        found += _narrowed(target, name, dtype, x[tops - 1], x[tops + 1], kind)
    return list(dict.fromkeys([*found, *singular(target, name, known, dtype)]))


def singular(target: Term, name: str, known: Samples, dtype: torch.dtype) -> list[float]:
    """Return numbers next to the zeros of denominators, of arguments of logarithms and of roots.

    Poles, holes and ends of the domain lie there. Arguments as for `critical`.
    """
    x, found = np.union1d(known.points[name], _GRID), list[float]()
    at = {name: torch.from_numpy(x)}
    terms = singular_at([target])
    for term, value in zip(terms, evaluate_all(terms, at) if terms else (), strict=True):
        sign = np.sign(value.numpy())
        zeros = x[sign == 0]
        found += map(float, zeros[np.argsort(np.abs(zeros), kind="stable")][:_MOST])
        flips = np.flatnonzero(sign[:-1] * sign[1:] < 0)
        found += _narrowed(term, name, dtype, x[flips], x[flips + 1], "flip")
    return list(dict.fromkeys(found))


def beside(
    target: Term, names: Sequence[str], places: Sequence[float], dtype: torch.dtype, seed: int, domain: Domain
) -> Samples:
    """Return samples of a term of one variable at all distances from some places, from one step to a million."""
    form, random = format_of(dtype), np.random.default_rng(seed)
    steps = np.concatenate([np.arange(9), 2.0 ** np.arange(3, 21) * random.uniform(1, 2, 18)]).astype(np.int64)
    centers = form.ordinal(np.array(places, dtype=np.float64))
    last = int(form.ordinal(np.array([form.largest]))[0])
    around = (centers[:, None] + np.concatenate([-steps, steps])).clip(-last, last)
    x = np.unique(form.at_ordinal(around.ravel()))
    low, high = domain.get(names[0], (-np.inf, np.inf))
    return samples(target, {names[0]: x[(x >= low) & (x <= high)]})


def _narrowed(target: Term, name: str, dtype: torch.dtype, low: Floats, high: Floats, kind: str) -> list[float]:
    """Return where the value changes its sign ("flip"), is least ("dip") or is largest ("peak") in some intervals."""
    form = format_of(dtype)
    nearest = np.argsort(np.minimum(np.abs(low), np.abs(high)), kind="stable")[:_MOST]
    first, last = form.ordinal(low[nearest]), form.ordinal(high[nearest])
    rows = np.arange(len(nearest))

    def values(at: Ordinals) -> Floats:
        value: Floats = exact([target], {name: form.at_ordinal(at.ravel())})[0].high.reshape(at.shape)
        with np.errstate(divide="ignore"):
            made: Floats = (
                np.sign(value) if kind == "flip" else np.nan_to_num(np.log2(np.abs(value)), nan=0.0, posinf=2e3)
            )
        return made

    for _ in range(_ROUNDS if len(rows) else 0):
        grid = first[:, None] + (last - first)[:, None] * np.arange(_PARTS + 1) // _PARTS
        value = values(grid)
        if kind == "flip":
            place = np.argmax(value != value[:, :1], axis=1)
            ends = np.maximum(place - 1, 0), place
        else:
            place = np.argmin(value, axis=1) if kind == "dip" else np.argmax(value, axis=1)
            ends = np.maximum(place - 1, 0), np.minimum(place + 1, _PARTS)
        first, last = (grid[rows, end] for end in ends)
    middle = (first + last) // 2
    if kind != "flip":  # a hollow in the curve is no root
        before, there, after = values(np.stack([middle - _ASIDE, middle, middle + _ASIDE]))
        deep = np.minimum(np.abs(there - before), np.abs(there - after)) > _DEEP
        middle = middle[deep]
    return [float(x) for x in form.at_ordinal(middle)]
