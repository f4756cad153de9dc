"""Derivatives of terms: the chain rule over the registry of ops, and limits where a formula fills in one value.

Term by term, the derivative of `where(x == 0, 1, sin(x)/x)` at 0 is that of the number 1: zero. The function is
differentiable there: where f is continuous at c and f' has a limit at c, that limit is f'(c), by the mean value
theorem. For sin(x)/x the first derivative at 0 is 0 either way, and the second is −1/3 and not 0 (`exact_derivative`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np

from pullback.errors import DerivativeError
from pullback.ops.registry import CONDITIONS, OPS
from pullback.stable.oracle.values import exact
from pullback.stable.term import CONST, LEAVES, POLY, VAR, Term, const, parse, substitute, topological, var, variables

ZERO, ONE = const(0), const(1)
_OPERANDS = tuple(map(var, "abc"))


FillRule = Callable[[Term, Term, str], Term]
"""Of `where(condition, number, b)`, the derivative of b and a variable: the derivative where the condition holds."""


def derivative(root: Term, by: str, filled: FillRule | None = None) -> Term:
    """Partial derivative of a term by one of its variables.

    Args:
        root: the term.
        by: the variable.
        filled: returns the derivative where `where` chooses a number; by default 0, the derivative of a constant.

    Raises:
        DerivativeError: if the table has no derivative for an op on the way.
    """
    found: dict[Term, Term] = {}
    for term in topological([root]):
        found[term] = _derivative_of(term, by, found, filled)
    return found[root]


def _derivative_of(term: Term, by: str, found: Mapping[Term, Term], filled: FillRule | None) -> Term:
    if term.op == VAR:
        return ONE if term.value == by else ZERO
    if term.op in LEAVES or term.op in CONDITIONS:
        return ZERO
    slopes = [found[a] for a in term.args]
    if term.op == "where":
        condition, a, b = term.args[0], slopes[1], slopes[2]
        if filled is not None and a is ZERO:
            a = filled(term, b, by)
        return a if a is b else Term("where", (condition, a, b))
    if all(slope is ZERO for slope in slopes):
        return ZERO
    if term.op == POLY or not OPS[term.op].partials:
        raise DerivativeError(f"the derivative of {term.op} is not in the table of pointwise ops.")
    # d f(a, b, …)/dx = ∂f/∂a · da/dx + ∂f/∂b · db/dx + …; terms with a slope of 0 are left out, so 0 · ∞ is 0 here
    total = ZERO
    for partial, slope in zip(_partials(term.op), slopes, strict=True):
        if slope is not ZERO:
            at = dict(zip(_OPERANDS, term.args, strict=False))
            total = add(total, multiply(substitute(partial, at), slope))
    return total


@cache
def _partials(op: str) -> tuple[Term, ...]:
    return tuple(map(parse, OPS[op].partials))


def add(a: Term, b: Term) -> Term:
    """Return a + b, without adding 0."""
    if a is ZERO or b is ZERO:
        return b if a is ZERO else a
    return Term("sub", (a, b.args[0])) if b.op == "neg" else Term("add", (a, b))


def multiply(a: Term, b: Term) -> Term:
    """Return a · b, without multiplying by 0, 1 or −1.

    A reciprocal gives a quotient: a/b is rounded once, a · (1/b) twice.
    """
    for p, q in ((a, b), (b, a)):
        if p is ZERO or p is ONE:
            return ZERO if p is ZERO else q
        if p.op == CONST and p.value == -1:
            return Term("neg", (q,))
        if p.op == "div" and p.args[0] is ONE:
            return Term("div", (q, p.args[1]))
        if p.op == "neg":
            return Term("neg", (multiply(p.args[0], q),))
    return Term("mul", (a, b))


def exact_derivative(root: Term, by: str) -> Term:
    """Partial derivative of a term, with its limit where a constant fills a hole of the formula.

    This applies to conditions `x == c` on the variable itself, in formulas of that variable alone; otherwise, and if
    the constant makes the function discontinuous, it is `derivative`.

    Raises:
        DerivativeError: if the table has no derivative for an op on the way.
        RunnerError: if python-flint is not installed, and there is such a condition.
    """
    return derivative(root, by, _filled)


def _filled(chosen: Term, slope: Term, by: str) -> Term:
    """Derivative at x = c of `where(x == c, number, b)`, given the derivative of b."""
    condition, number, rest = chosen.args
    at = _place(condition, by)
    if at is None or slope is ZERO or variables(number) or not {*variables(rest), *variables(slope)} <= {by}:
        return ZERO
    given, reached, limit = exact([number, rest, slope], {by: np.array([at])})
    if given.high[0] != reached.high[0] or not math.isfinite(limit.high[0]):
        return ZERO
    return const(float(limit.high[0]))


def _place(condition: Term, by: str) -> float | None:
    """The number c of `x == c`."""
    if condition.op != "eq":
        return None
    for x, number in (condition.args, condition.args[::-1]):
        if x.op == VAR and x.value == by and number.op == CONST:
            return float(number.value)
    return None
