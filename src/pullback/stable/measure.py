"""Errors of a formula at points, against the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from pullback.stable.formats import Floats
from pullback.stable.formula import Formula, Quantity
from pullback.stable.oracle import Truth, exact, root_between
from pullback.stable.reading import NEGLIGIBLE
from pullback.stable.sampling import Domain, close_to, points
from pullback.stable.summary import Point, Summary, summary
from pullback.stable.term import Term
from pullback.stable.ulp import Errors, errors

_ROOTS = 8
_FAR = 1e6
"""Largest magnitude at which roots are searched: those of periodic functions are denser than the sample beyond."""

Columns = Mapping[str, Floats]
"""For each variable its values at some points."""


def measure(formula: Formula, terms: Mapping[Quantity, Term], dtype: torch.dtype, at: Columns) -> list[Summary]:
    """Return the errors of each quantity at some points of a dtype."""
    truths = exact(list(terms.values()), at, _negligible(dtype))
    return summarise(run(formula, terms, dtype, at), truths, at)


def measure_sample(
    formula: Formula, terms: Mapping[Quantity, Term], dtype: torch.dtype, seed: int, domain: Domain | None
) -> list[Summary]:
    """Return the errors of each quantity on a sample, with a closer look at where it is worst and at roots."""
    names = formula.variables
    at = points(names, dtype, seed, domain)
    truths = exact(list(terms.values()), at, _negligible(dtype))
    found = summarise(run(formula, terms, dtype, at), truths, at)
    near = [point for s in found for point in _places(s)]
    if len(names) == 1:
        near += [p for term, truth in zip(terms.values(), truths, strict=True) for p in _roots(term, truth, at)]
    closer = close_to(near, names, dtype, seed, domain)
    if len(names) == 1:  # points in both sets would count twice
        (name,) = names
        closer = {name: np.setdiff1d(closer[name], at[name])}
    if not len(closer[names[0]]):
        return found
    return [a + b for a, b in zip(found, measure(formula, terms, dtype, closer), strict=True)]


def _negligible(dtype: torch.dtype) -> float:
    """Return the magnitude below which errors in a dtype need no exact digits."""
    return 2.0**-1074 if dtype == torch.float64 else NEGLIGIBLE


def run(formula: Formula, terms: Mapping[Quantity, Term], dtype: torch.dtype, at: Columns) -> list[list[Tensor]]:
    """Compute each quantity on contiguous and on strided tensors.

    PyTorch's kernels use vector instructions for the first and scalar ones for the second, which may differ in bits.
    """
    order = max(len(quantity.by) for quantity in terms)
    tensors = [torch.from_numpy(at[name]).to(dtype) for name in formula.variables]
    strided = [torch.stack([x, x], dim=1)[:, 0] for x in tensors]
    results = [formula.run(xs, order) for xs in (tensors, strided)]
    return [[result[quantity] for result in results] for quantity in terms]


def summarise(computed: list[list[Tensor]], truths: list[Truth], at: Columns) -> list[Summary]:
    """Return the errors of each quantity, the larger one at each point if it was computed in several ways."""
    found = []
    for ways, truth in zip(computed, truths, strict=True):
        worst = ways[0]
        for other in ways[1:]:
            worst = _worse(worst, other, truth)
        found.append(summary(errors(worst, truth), at, worst, truth))
    return found


def _worse(a: Tensor, b: Tensor, truth: Truth) -> Tensor:
    """Return, of two tensors of values, at each point the one that is further off."""
    at = torch.nonzero((a != b) & ~(a.isnan() & b.isnan()))[:, 0]
    here = at.numpy()
    there = Truth(truth.high[here], truth.low[here], truth.undecided[here])
    worse = _badness(errors(b[at], there)) > _badness(errors(a[at], there))
    return a.index_copy(0, at[torch.from_numpy(worse)], b[at][torch.from_numpy(worse)])


def _badness(found: Errors) -> Floats:
    badness: Floats = np.where(found.spurious, np.inf, found.ulp)
    return badness


def _places(found: Summary) -> list[Point]:
    """Return where a summary shows wrong values."""
    worst = [] if found.worst is None else [found.worst.point]
    return worst + [s.start for s in (found.nan, found.inf, found.zero) if s.start is not None]


def _roots(term: Term, truth: Truth, at: Columns) -> list[Point]:
    """Return the roots nearest to 0 of a term of one variable, between points of opposite sign."""
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
