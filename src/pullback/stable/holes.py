"""Removable holes of formulas of one variable, for the quick rule pass: points where only a limit gives a value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from pullback.stable import quick_points
from pullback.stable.evaluate import evaluate
from pullback.stable.formats import Floats, format_of
from pullback.stable.quick_dispute import limit
from pullback.stable.singular import singular_at
from pullback.stable.term import Term, const, topological, var, variables

_USUAL = {torch.float64: torch.float32}
"""Roots are not found to the last bit of float64; those that people write are numbers of fewer bits."""
_MOST = 4
"""Holes that are looked at, the nearest to 0."""


def holes(root: Term, dtype: torch.dtype) -> list[float]:
    """Return numbers of a dtype at which a term of one variable is 0/0 and has a limit; none for several variables."""
    names = variables(root)
    if len(names) != 1 or not any(t.op == "div" for t in topological([root])):
        return []
    zeros = np.unique(np.array(list(_zeros(root, names[0], dtype))))
    zeros = zeros[np.argsort(np.abs(zeros), kind="stable")][:_MOST]
    if not len(zeros):
        return []
    unknown = evaluate(root, {names[0]: torch.from_numpy(zeros)}).isnan().numpy()
    return [float(x) for x in zeros[unknown] if limit(root, names[0], float(x)) is not None]


def filled(term: Term, target: Term, name: str, places: Sequence[float]) -> Term:
    """Return a term that has the limits of its exact meaning at some places, where there are any."""
    for place in places:
        value = limit(target, name, place)
        if value is not None:
            term = Term("where", (Term("eq", (var(name), const(place))), const(value), term))
    return term


def _zeros(root: Term, name: str, dtype: torch.dtype) -> Iterator[float]:
    """Yield the zeros of denominators that are numbers of a dtype."""
    (points,) = quick_points.groups(1, dtype)
    yield 0.0
    for term in singular_at([root]):

        def value(at: quick_points.Columns, term: Term = term) -> Floats:
            found: Floats = evaluate(term, {name: torch.from_numpy(at[0])}).numpy()
            return found

        roots = quick_points.roots(value, [points[:, 0]])[0]
        for form in map(format_of, dict.fromkeys((dtype, _USUAL.get(dtype, dtype)))):
            found = form.round(roots)
            yield from found[value([found]) == 0].tolist()
