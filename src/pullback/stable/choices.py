"""Choices that a domain settles: |x + 1| is x + 1 where x > 0, and a branch that is never taken is not there."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pullback.stable.formats import Floats
from pullback.stable.oracle import exact
from pullback.stable.term import Term, const, topological

_COMPARED = {"maximum": (0, 1), "minimum": (1, 0)}
"""Of an op that takes one of two operands: which if the first is larger, and which else."""
_SIGNED = frozenset({"abs", "sgn", "relu"})


def settled(target: Term, points: Mapping[str, Floats]) -> Term:
    """Return a term that has the values of the target at some points, without the choices that fall one way at all.

    Nothing proves that they do so in between.
    """
    asked = {t: _question(t) for t in topological([target]) if t.op == "where" or t.op in _COMPARED or t.op in _SIGNED}
    if not asked:
        return target
    answers = dict(zip(asked, exact(list(asked.values()), points), strict=True))
    made: dict[Term, Term] = {}
    for term in topological([target]):
        made[term] = Term(term.op, tuple(made[a] for a in term.args), term.value)
        if term in answers:
            made[term] = _taken(made[term], answers[term].high)
    return made[target]


def _question(term: Term) -> Term:
    """Return the term that decides a choice: a condition, or a number by its sign."""
    return Term("sub", term.args) if term.op in _COMPARED else term.args[0]


def _taken(term: Term, decides: np.ndarray) -> Term:
    if term.op == "where":
        return term.args[1] if (decides == 1).all() else term.args[2] if (decides == 0).all() else term
    larger, smaller = (decides >= 0).all(), (decides <= 0).all()
    if not larger and not smaller:
        return term
    if term.op in _COMPARED:
        return term.args[_COMPARED[term.op][0 if larger else 1]]
    if term.op == "sgn":
        return term if (decides == 0).any() else const(1 if larger else -1)
    inside = term.args[0]
    return inside if larger else const(0) if term.op == "relu" else Term("neg", (inside,))
