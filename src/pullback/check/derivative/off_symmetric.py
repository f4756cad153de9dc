"""Gradients that are right along symmetric directions at a symmetric matrix, and wrong along others.

`compare_input` keeps a symmetric input symmetric. Faults that this conceals, such as a missing transpose, are searched
for here. A function that reads one triangle only, as `eigvalsh` and `cholesky` do, is exempt: it is defined on
symmetric matrices, and its gradient is symmetric by convention.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.check.derivative.agreement import difference
from pullback.check.derivative.compare_input import Comparison, compare_input
from pullback.check.derivative.first_order import FirstOrder
from pullback.check.derivative.sampler import Sampler, is_symmetric
from pullback.check.derivative.wording import texts
from pullback.check.subject import Subject
from pullback.check.trial import Raised, forward

if TYPE_CHECKING:
    from pullback.check.state import Audit

_SYMMETRIC = re.compile(
    r"(?<!non)(?<!non[- ])(?<!not )(?<!skew[- ])\b(symmetric|hermitian|self[- ]?adjoint"
    r"|positive[- ]?(semi[- ]?)?definite|spd|psd|cholesky|eigvalsh|eigh|sym|covariance)\b",
    re.IGNORECASE,
)


def says_symmetric(subject: Subject) -> bool:
    """Whether name, docstring or comments say that it is a function of symmetric matrices."""
    return any(_SYMMETRIC.search(text) for text in texts(subject))


def wrong_off_symmetric(audit: Audit, result: FirstOrder) -> Comparison | None:
    """Return a disagreement along a free direction of a symmetric input whose gradient is right otherwise."""
    if says_symmetric(audit.subject):
        return None
    sampler = Sampler(audit.subject, result.case, result.run.differentiable, result.cotangents)
    for right in result.comparisons:
        x, gradient = result.case.tensors[right.order], result.gradients[right.order]
        if right.status != "ok" or gradient is None or not is_symmetric(x):
            continue
        found = compare_input(sampler, right.order, gradient, audit.generator, 1, audit.elements, within=_free)
        if found.status == "wrong" and not _reads_one_triangle(audit.subject, result, right.order):
            return found
    return None


def _free(direction: Tensor, x: Tensor) -> Tensor:
    return direction


def _reads_one_triangle(subject: Subject, result: FirstOrder, order: int) -> bool:
    """Whether a change of one triangle, above or below the diagonal, changes no output at all."""
    position = result.case.wrt[order]
    x = result.case.values[position]
    for side in (x.tril(-1), x.triu(1)):
        other = result.case.with_values({position: x + side + (side != 0) * 0.125})
        try:
            outputs = forward(subject, other).outputs
        except Raised:
            continue
        with torch.no_grad():
            if difference(list(result.run.outputs), list(outputs), rounding=0.0) is None:
                return True
    return False
