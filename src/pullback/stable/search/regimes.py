"""Regimes: which implementation where, and the thresholds between them.

Of one variable, the choice is the cheapest path through the sorted samples, with a price for each change (Viterbi's
algorithm); thresholds are then refined between the samples and rounded to few digits. Of several variables, samples are
split by the best of a few terms (a variable, or a sum, difference, product or quotient of two), recursively by others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from pullback.stable.evaluate import evaluate
from pullback.stable.formats import Floats, format_of
from pullback.stable.piecewise import Piece, Piecewise
from pullback.stable.sampling import TargetSamples, samples_at
from pullback.stable.search.candidates import Implementation, errors_of
from pullback.stable.term import Term, var

CHANGE = 25.0
"""The price of a branch, in the unit of `price`: that of an error 4.7 ulp beyond the goal at one sample.

4 log₂²(1 + e) = 25 at e = 2^2.5 − 1 = 4.66, if another implementation meets the goal.
"""
_BLOCKS = 300
"""Number of blocks in which the samples of several variables are summed."""

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Regime:
    """Consecutive samples [start, stop) that one implementation computes."""

    choice: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Goal:
    """Errors in ulp.

    Attributes:
        enough: good enough: among such implementations the shorter code wins.
        limit: above it the search continues.
        weight: weight of the error beyond `enough`.
    """

    enough: float
    limit: float
    weight: float = 1.0


def price(errors: Floats, costs: Floats, goal: Goal) -> Floats:
    """Price of each implementation at each sample.

    The main term is the squared regret: log2 of the error beyond the goal, less that of the best implementation. So
    where all are bad, none is preferred. Cost and the error up to 10 ulp break ties.
    """
    # Bits lost beyond the goal. A square makes one bad sample worse than many slightly bad ones; the factor 4 makes a
    # regret of 2.5 bits as expensive as a branch (`CHANGE`).
    beyond = np.log2(1 + goal.weight * np.maximum(errors - goal.enough, 0))
    regret = beyond - beyond.min(0)
    prices: Floats = 4 * regret**2 + 2e-3 * costs[:, None] + 1e-3 * np.minimum(errors, 10)
    return prices


def worst_nearby(errors: Floats, reach: int = 8, most: float = 10.0) -> Floats:
    """Worst error of each sample and its neighbours, so that a lucky sample does not decide.

    Neighbours count with at most `most`, so that an implementation may be used up to the end of its range.
    """
    worst, seen = errors.copy(), np.minimum(errors, most)
    for shift in range(1, reach + 1):
        np.maximum(worst[:, shift:], seen[:, :-shift], out=worst[:, shift:])
        np.maximum(worst[:, :-shift], seen[:, shift:], out=worst[:, :-shift])
    return worst


def few_regimes(prices: Floats, most: int = 12) -> tuple[list[Regime], float]:
    """Cheap sequence of few runs and its price: where nothing is good, many changes would fit the noise."""
    change = CHANGE
    while True:
        runs, total = cheapest(prices, change)
        if len(runs) <= most:
            return runs, total
        change *= 4


def grouped_regimes(prices: Floats, order: Indices, starts: Indices, most: int) -> tuple[list[Regime], float]:
    """Cheap sequence of few runs of whole groups of samples, and its price.

    It is searched in blocks of groups; its changes are then moved to the best places in the adjacent blocks.

    Args:
        prices: price of each implementation at the samples.
        order: permutation of the samples that are used.
        starts: index in it at which each group begins: samples that no threshold separates.
        most: maximum number of runs.
    """
    bounds = np.append(starts, len(order))
    count = len(starts)
    edges = np.unique(np.linspace(0, count, min(count, _BLOCKS) + 1).astype(int))
    blocks = [prices[:, order[a:b]].sum(1) for a, b in pairwise(bounds[edges])]  # by blocks, that a cache holds
    coarse, _ = few_regimes(np.stack(blocks, axis=1), most)
    changes = [0]
    for left, right in pairwise(coarse):
        low, high = max(changes[-1], int(edges[right.start - 1])), int(edges[right.start + 1])
        rows = order[bounds[low] : bounds[high]]
        # With the change at c the price is Σ_(j<c) left_j + Σ_(j≥c) right_j: a constant and Σ_(j<c) (left_j − right_j).
        gain = np.cumsum(prices[left.choice, rows] - prices[right.choice, rows])
        saved = gain[bounds[low + 1 : high + 1] - bounds[low] - 1]
        changes.append(low + int(np.argmin(np.insert(saved, 0, 0.0))))
    ends = [int(bounds[c]) for c in [*changes, count]]
    runs = [Regime(run.choice, a, b) for run, (a, b) in zip(coarse, pairwise(ends), strict=True) if a < b]
    total = sum(float(prices[r.choice, order[r.start : r.stop]].sum()) for r in runs)
    return runs, total + CHANGE * (len(runs) - 1)


def cheapest(prices: Floats, change: float = CHANGE) -> tuple[list[Regime], float]:
    """Cheapest sequence of implementations over sorted samples (Viterbi's algorithm) and its price.

    The least price of a sequence up to sample j that ends with implementation k is
    best_k(j) = price_k(j) + min(best_k(j − 1), minᵢ bestᵢ(j − 1) + change).
    """
    count, n = prices.shape
    best = prices[:, 0].copy()
    came = np.zeros((n, count), np.int32)
    own = np.arange(count)
    for j in range(1, n):
        # From any implementation it is best to change to the cheapest one so far: the minimum over i needs no second
        # loop.
        other = int(np.argmin(best))
        switched = best[other] + change
        stays = best <= switched
        came[j] = np.where(stays, own, other)
        best = np.where(stays, best, switched) + prices[:, j]
    choice = int(np.argmin(best))
    total = float(best[choice])
    runs: list[Regime] = []
    stop = n
    for j in range(n - 1, 0, -1):
        before = int(came[j][choice])
        if before != choice:
            runs.append(Regime(choice, j, stop))
            stop, choice = j, before
    runs.append(Regime(choice, 0, stop))
    return runs[::-1], total


def threshold(low: float, high: float, errors: Callable[[Floats], tuple[Floats, Floats]]) -> float:
    """Threshold between two neighbouring float32 samples.

    Args:
        low, high: the last sample of the left implementation and the first of the right one.
        errors: errors of the left and of the right implementation at some points.
    """
    form = format_of(torch.float32)
    while True:
        first, last = form.ordinal(np.array([low, high]))
        at = form.at_ordinal(np.unique(np.linspace(first, last, 35).astype(np.int64)))
        if len(at) < 3:
            break
        left, right = errors(at)
        # the worst error if points up to one are computed by the left implementation and the rest by the right one
        until = np.maximum.accumulate(left)[:-1]
        after = np.maximum.accumulate(right[::-1])[::-1][1:]
        both = np.maximum(until, after)
        fine = np.flatnonzero(both <= both.min() + 0.25)
        low, high = float(at[fine[0]]), float(at[fine[-1] + 1])
        if len(fine) > 4 or len(fine) == len(both):
            break
    return roundest(low, high)


def roundest(low: float, high: float) -> float:
    """Float32 of fewest decimal digits in [low, high)."""
    for digits in range(1, 18):
        for candidate in ((low + high) / 2, high):
            rounded = float(np.float32(f"{candidate:.{digits - 1}e}"))
            if low <= rounded < high:
                return rounded
    return low


_MIN_SAMPLES = 64
"""Samples below which a part is not split further."""
_PARTS = 4
"""Pieces into which several variables are split at once."""
_DEPTH = 2
_COSTS = 0.15
"""Weight of the length of code, relative to one variable: a region that saves some may be wrong in another."""
_UNCLEAN, _WRONG = 100.0, 1e5
"""Price per sample of an implementation with an error of that many ulp somewhere.

Boundaries of regions of several variables are not known to the last bit: an implementation that is right everywhere is
better than a locally better one.
"""


def split_univariate(
    target: Term, name: str, choices: Sequence[Implementation], near: TargetSamples, goal: Goal, dtype: torch.dtype
) -> Piecewise:
    """Program that chooses by thresholds on the one variable, refined between the samples."""
    prices = price(worst_nearby(errors_of(choices, near, dtype)), _costs(choices), goal)
    runs, _ = few_regimes(prices)
    x = near.points[name]
    pieces = []
    for run, after in pairwise([*runs, None]):
        assert run is not None, "the last is not followed"
        upper = np.inf
        if after is not None:
            pair = [choices[run.choice], choices[after.choice]]

            def errors(at: Floats, pair: list[Implementation] = pair) -> tuple[Floats, Floats]:
                left, right = errors_of(pair, samples_at(target, {name: at}), dtype)
                return left, right

            upper = threshold(float(x[after.start - 1]), float(x[after.start]), errors)
        pieces.append(Piece(choices[run.choice].term, upper, choices[run.choice].wide))
    return Piecewise(var(name), tuple(pieces))


def split_multivariate(
    names: Sequence[str], choices: Sequence[Implementation], near: TargetSamples, goal: Goal, dtype: torch.dtype
) -> Piecewise:
    """Program that chooses by thresholds on a variable, or a sum, difference, product or quotient of two."""
    errors = errors_of(choices, near, dtype)
    prices = price(errors, _COSTS * _costs(choices), goal)
    prices += _UNCLEAN * (errors.max(1, keepdims=True) > _WRONG)
    prices = np.asfortranarray(prices)  # samples are taken and summed
    return _split(names, choices, prices, near, np.arange(len(near)), _DEPTH)[0]


def _costs(choices: Sequence[Implementation]) -> Floats:
    return np.array([c.cost for c in choices])


def _split(
    names: Sequence[str],
    choices: Sequence[Implementation],
    prices: Floats,
    near: TargetSamples,
    rows: np.ndarray,
    depth: int,
) -> tuple[Piecewise, float]:
    """Cheapest program for some samples and its price: split by the best term, recursively by others."""
    totals = prices.T[rows].sum(0)
    lone = choices[int(np.argmin(totals))]
    best = Piecewise(None, (Piece(lone.term, wide=lone.wide),)), float(totals.min())
    if depth == 0 or len(rows) < _MIN_SAMPLES:
        return best
    inputs = near.at(rows).tensors(torch.float32)
    for branch in _branches(names):
        value = evaluate(branch, inputs).double().numpy()
        order = np.argsort(value, kind="stable")
        starts = np.unique(value[order], return_index=True)[1]
        runs, total = grouped_regimes(prices, rows[order], starts, _PARTS)
        if len(runs) == 1 or total >= best[1] - CHANGE:
            continue
        pieces, spent = [], CHANGE * (len(runs) - 1)
        for run in runs:
            body, price = _split(names, choices, prices, near, rows[order[run.start : run.stop]], depth - 1)
            spent += price
            last = run.stop == len(order)
            upper = np.inf if last else roundest(*map(float, value[order[run.stop - 1 : run.stop + 1]]))
            only = body.pieces[0]
            pieces.append(Piece(only.body, upper, only.wide) if len(body.pieces) == 1 else Piece(body, upper))
        if spent < best[1]:
            best = Piecewise(branch, tuple(pieces)), spent
    return best


def _branches(names: Sequence[str]) -> list[Term]:
    terms = [var(n) for n in names]
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            terms += [Term(op, (var(a), var(b))) for op in ("sub", "add", "mul", "div")]
    return terms
