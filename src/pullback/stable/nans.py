"""Inputs of a term whose NaN reaches its value: not those that only a condition reads, for example."""

from __future__ import annotations

from functools import cache
from itertools import product

import torch

from pullback import _torch
from pullback.ops.registry import CONDITIONS, OPS
from pullback.stable.evaluate import number
from pullback.stable.term import LEAVES, POLY, VAR, Term, topological

_PROBES = (0.0, -1.0, 1.0, 2.5, float("inf"), float("-inf"))


def shown(root: Term) -> frozenset[str]:
    """Return the variables whose NaN makes a term NaN, whatever the others are."""
    found: dict[Term, frozenset[str]] = {}
    for term in topological([root]):
        found[term] = _shown(term, found)
    return found[root]


def _shown(term: Term, found: dict[Term, frozenset[str]]) -> frozenset[str]:
    if term.op == VAR:
        return frozenset({term.value})
    if term.op in LEAVES or term.op in CONDITIONS:
        return frozenset()
    if term.op == POLY:
        poly = term.value
        return found[term.args[0]] if poly.power > 0 or len(poly.coefficients) > 1 else frozenset()
    if term.op == "where":
        return found[term.args[1]] & found[term.args[2]]
    constants = tuple(number(a) if a.op in LEAVES and a.op != VAR else None for a in term.args)
    through = [found[a] for i, a in enumerate(term.args) if _passes(term.op, i, constants)]
    return frozenset().union(*through)


@cache
def _passes(op: str, place: int, constants: tuple[float | None, ...]) -> bool:
    """Whether a kernel gives NaN for a NaN operand, whatever the others are: hypot(∞, NaN) is ∞, sgn(NaN) is 0."""
    values = [_PROBES if c is None else (c,) for c in constants]
    values[place] = (float("nan"),)
    columns = zip(*product(*values), strict=True)
    with _torch.without_modes():  # a trace may be the first to ask
        return bool(OPS[op].value(*(torch.tensor(column) for column in columns)).isnan().all())
