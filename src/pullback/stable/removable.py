"""Derivatives where a formula fills in one value by hand, as `where(x == 0, 1, sin(x)/x)` does.

Term by term, the derivative of the number that is filled in is 0. The function is differentiable there: where it is
continuous at c and its slope has a limit at c, that limit is its derivative at c (by the mean value theorem). For
sin(x)/x the first derivative at 0 is 0 either way, and the second is −1/3 and not 0.
"""

from __future__ import annotations

import math

import numpy as np

from pullback.stable.derive import ZERO, derivative
from pullback.stable.oracle import exact
from pullback.stable.term import CONST, VAR, Term, const, variables


def exact_derivative(root: Term, by: str) -> Term:
    """Return the partial derivative of a term, with its limit where a constant fills a hole of the formula.

    This applies to conditions `x == c` on the variable itself, in formulas of that variable alone; otherwise, and if
    the constant makes the function discontinuous, it is `derivative`.

    Raises:
        DerivativeError: if the table has no derivative for an op on the way.
        RunnerError: if python-flint is not installed, and there is such a condition.
    """
    return derivative(root, by, _filled)


def _filled(chosen: Term, slope: Term, by: str) -> Term:
    """Return the derivative at x = c of `where(x == c, number, b)`, given the derivative of b."""
    condition, number, rest = chosen.args
    at = _place(condition, by)
    if at is None or slope is ZERO or variables(number) or not {*variables(rest), *variables(slope)} <= {by}:
        return ZERO
    given, reached, limit = exact([number, rest, slope], {by: np.array([at])})
    if given.high[0] != reached.high[0] or not math.isfinite(limit.high[0]):
        return ZERO
    return const(float(limit.high[0]))


def _place(condition: Term, by: str) -> float | None:
    """Return c of `x == c`."""
    if condition.op != "eq":
        return None
    for x, number in (condition.args, condition.args[::-1]):
        if x.op == VAR and x.value == by and number.op == CONST:
            return float(number.value)
    return None
