"""Programs from implementations: which one where, and the thresholds between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from pullback.stable import regimes
from pullback.stable.candidates import Choice, errors_of
from pullback.stable.evaluate import evaluate
from pullback.stable.formats import Floats
from pullback.stable.piecewise import Piece, Program
from pullback.stable.regimes import Goal
from pullback.stable.samples import Samples, samples
from pullback.stable.term import Term, var

_FEW = 64
"""Samples below which a part is not split further."""
_PARTS = 4
"""Pieces into which several variables are split at once."""
_DEPTH = 2
_COSTS = 0.15
"""How much less than with one variable the length of code counts: a region that saves some may be wrong elsewhere."""
_UNCLEAN, _WRONG = 100.0, 1e5
"""Price per sample of an implementation with an error of that many ulp somewhere.

Boundaries of regions of several variables are not known to the last bit: an implementation that is right everywhere is
better than a locally better one.
"""


def univariate(
    target: Term, name: str, choices: Sequence[Choice], near: Samples, goal: Goal, dtype: torch.dtype
) -> Program:
    """Return a program that chooses by thresholds on the one variable, refined between the samples."""
    prices = regimes.price(regimes.around(errors_of(choices, near, dtype)), _costs(choices), goal)
    runs, _ = regimes.few(prices)
    x = near.points[name]
    pieces = []
    for run, after in pairwise([*runs, None]):
        assert run is not None, "the last is not followed"
        upper = np.inf
        if after is not None:
            pair = [choices[run.choice], choices[after.choice]]

            def errors(at: Floats, pair: list[Choice] = pair) -> tuple[Floats, Floats]:
                left, right = errors_of(pair, samples(target, {name: at}), dtype)
                return left, right

            upper = regimes.threshold(float(x[after.start - 1]), float(x[after.start]), errors)
        pieces.append(Piece(choices[run.choice].term, upper, choices[run.choice].wide))
    return Program(var(name), tuple(pieces))


def multivariate(
    names: Sequence[str], choices: Sequence[Choice], near: Samples, goal: Goal, dtype: torch.dtype
) -> Program:
    """Return a program that chooses by thresholds on a variable, or a sum, difference, product or quotient of two."""
    errors = errors_of(choices, near, dtype)
    prices = regimes.price(errors, _COSTS * _costs(choices), goal)
    prices += _UNCLEAN * (errors.max(1, keepdims=True) > _WRONG)
    prices = np.asfortranarray(prices)  # samples are taken and summed
    return _parted(names, choices, prices, near, np.arange(len(near)), _DEPTH)[0]


def _costs(choices: Sequence[Choice]) -> Floats:
    return np.array([c.cost for c in choices])


def _parted(
    names: Sequence[str], choices: Sequence[Choice], prices: Floats, near: Samples, rows: np.ndarray, depth: int
) -> tuple[Program, float]:
    """Return the cheapest program for some samples and its price: split by the best term, recursively by others."""
    totals = prices.T[rows].sum(0)
    lone = choices[int(np.argmin(totals))]
    best = Program(None, (Piece(lone.term, wide=lone.wide),)), float(totals.min())
    if depth == 0 or len(rows) < _FEW:
        return best
    inputs = near.at(rows).tensors(torch.float32)
    for branch in _branches(names):
        value = evaluate(branch, inputs).double().numpy()
        order = np.argsort(value, kind="stable")
        starts = np.unique(value[order], return_index=True)[1]
        runs, total = regimes.grouped(prices, rows[order], starts, _PARTS)
        if len(runs) == 1 or total >= best[1] - regimes.CHANGE:
            continue
        pieces, spent = [], regimes.CHANGE * (len(runs) - 1)
        for run in runs:
            body, price = _parted(names, choices, prices, near, rows[order[run.start : run.stop]], depth - 1)
            spent += price
            last = run.stop == len(order)
            upper = np.inf if last else regimes.roundest(*map(float, value[order[run.stop - 1 : run.stop + 1]]))
            only = body.pieces[0]
            pieces.append(Piece(only.body, upper, only.wide) if len(body.pieces) == 1 else Piece(body, upper))
        if spent < best[1]:
            best = Program(branch, tuple(pieces)), spent
    return best


def _branches(names: Sequence[str]) -> list[Term]:
    terms = [var(n) for n in names]
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            terms += [Term(op, (var(a), var(b))) for op in ("sub", "add", "mul", "div")]
    return terms
