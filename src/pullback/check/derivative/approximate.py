"""Gradients that are off by the error of an approximation: an iteration that stopped early, a quadrature, float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.check.case import Case, is_differentiable
from pullback.check.cases.guess import same
from pullback.check.cases.iterations import iterates, more_iterations
from pullback.check.derivative.compare_input import Comparison
from pullback.check.derivative.first_order import FirstOrder

if TYPE_CHECKING:
    from pullback.check.state import Audit

_SINGLE = 5e-4
"""Relative error of the derivative that a chain of float32 operations may have."""
_A_PART = 0.5
"""Relative error of the derivative that an iteration may have which stopped early: a lost factor is larger."""
_ABOUT_SMALL = 10.0
"""Times the largest difference that is small."""
_HALVINGS = 8
"""Bisections between the example and a variant."""


def converges(audit: Audit, case: Case, order: int) -> bool:
    """Whether a wrong gradient becomes right with more iterations."""
    longer = more_iterations(case)
    others = set(range(len(case.wrt))) - {order}
    again = None if longer is None else audit.compare(longer, settled=others)
    return again is not None and any(c.order == order and c.status == "ok" for c in again.comparisons)


def may_not_converge(audit: Audit, result: FirstOrder, c: Comparison) -> bool:
    """Whether a variant is off by a part only, of a function that iterates as long as its numbers ask for."""
    part = c.gap < _A_PART * max(abs(c.low), abs(c.high))
    return result.case.is_variant and part and iterates(audit.subject, audit.base, result.case)


def may_approximate(audit: Audit, c: Comparison) -> bool:
    """Whether a guessed call of a function that takes functions, as quadratures and solvers do, is off by a part only.

    How fine they are is a guess, too.
    """
    takes_functions = any(callable(value) and not isinstance(value, type | Tensor) for value in audit.base.values)
    return audit.guessed and takes_functions and c.gap < _A_PART * max(abs(c.low), abs(c.high))


def is_coarse(audit: Audit, c: Comparison) -> bool:
    """Whether a disagreement is one that float32 leaves, of an example in float32 that was made wider.

    Numbers that the function holds may be float32 still: the times of a solver, a table.
    """
    was_single = any(t.dtype == torch.float32 for case in audit.given for t in case.tensors)
    return was_single and c.gap < _SINGLE * max(abs(c.low), abs(c.high))


def grows(audit: Audit, result: FirstOrder) -> bool:
    """Whether a difference grows from nothing on the way from the example to a variant, as an approximation's does.

    A wrong formula is wrong at once, or from a branch on. The error of a quadrature rule, of a truncated series or of a
    small constant is small for a while; where one input shows that, all of the variant is in doubt.
    """
    base, case = audit.base, result.case
    pairs = list(zip(base.values, case.values, strict=False))
    if not case.is_variant or len(base.values) != len(case.values) or any(not _differ_in_numbers(*p) for p in pairs):
        return False
    return any(_is_small_for_a_while(audit, case, c.order) for c in result.wrong)


def _is_small_for_a_while(audit: Audit, case: Case, order: int) -> bool:
    """Whether the difference is about a small one where bisection finds the gradient of an input to become wrong."""
    right, wrong = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (right + wrong) / 2
        way = {p: torch.lerp(audit.base.values[p], case.values[p], middle) for p in case.wrt}
        between = audit.compare(case.with_values(way))
        found = [one for one in between.wrong if one.order == order] if between is not None else []
        if not found:
            right = middle
        elif found[0].weight <= _ABOUT_SMALL:
            return True
        else:
            wrong = middle
    return False


def _differ_in_numbers(x: object, y: object) -> bool:
    """Whether two arguments are the same, or tensors of one kind."""
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        same_kind = (x.shape, x.dtype, x.stride()) == (y.shape, y.dtype, y.stride())
        return same_kind and (is_differentiable(x) or torch.equal(x, y))
    return same(x, y)
