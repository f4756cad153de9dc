"""The likely cause of a disagreement: a known mistake, an approximation, or a formula for symmetric matrices alone."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback._torch import DispatchMode
from pullback.check.case import Case, is_differentiable
from pullback.check.cases.guess import is_same_argument
from pullback.check.cases.iterations import iterates, more_iterations
from pullback.check.cases.values import ALL_EQUAL
from pullback.check.derivative.agreement import difference
from pullback.check.derivative.compare_input import Comparison, compare_input
from pullback.check.derivative.first_order import FirstOrder, agrees
from pullback.check.derivative.intent import texts
from pullback.check.derivative.sampler import Sampler, is_symmetric
from pullback.check.subject import Subject
from pullback.check.trial import Raised, forward, vjp

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def cause(audit: Audit, result: FirstOrder, comparison: Comparison) -> str:
    """The mistake that explains a wrong gradient, as in `Rule.explains`; empty if none does."""
    gradient = result.gradients[comparison.input_index]
    if gradient is None:
        return "no gradient"
    if swapped_with(audit, result, comparison) is not None:
        return "swapped gradients"
    if gradient.is_complex() and _is_right_conjugated(audit, result, comparison):
        return "missing conjugate"
    if ignored_cotangents(audit, result):
        return "ignored cotangent"
    return ""


class _Overwriting(DispatchMode):
    """Notices an indexed write with repeated indices, whose result depends on the order."""

    seen = False

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        accumulates = (kwargs or {}).get("accumulate", len(args) > 3 and args[3] is True)
        self.seen |= op.overloadpacket in _OVERWRITE and not accumulates
        return op(*args, **(kwargs or {}))


aten = torch.ops.aten
_OVERWRITE = (
    aten.index_put, aten.index_put_, aten._index_put_impl_, aten.put, aten.put_, aten.index_copy, aten.index_copy_,
    aten.scatter, aten.scatter_,
)  # fmt: skip


def overwrites(audit: Audit, case: Case) -> bool:
    """Whether a forward writes by its indices, which are all the same in a case: PyTorch defines no result then.

    The gradients of PyTorch's own ops count every write, and not the one that won.
    """
    if case.label != ALL_EQUAL:
        return False
    with _Overwriting() as mode:  # type: ignore[no-untyped-call]
        forward(audit.subject, case)
    return bool(mode.seen)


def swapped_with(audit: Audit, result: FirstOrder, comparison: Comparison) -> int | None:
    """Return the input whose returned gradient is the right one for this input, if there is one."""
    own = result.gradients[comparison.input_index]
    for other, gradient in enumerate(result.gradients):
        if other == comparison.input_index or gradient is None or own is None or gradient.shape != own.shape:
            continue
        if torch.equal(gradient, own):
            continue
        if agrees(audit.subject, result, comparison.input_index, gradient, audit.generator):
            return other
    return None


def _is_right_conjugated(audit: Audit, result: FirstOrder, comparison: Comparison) -> bool:
    """Whether g f'(x) should have been g conj(f'(x)): for real g, the one is the conjugate of the other."""
    # The gradient through an analytic f is g conj(f'(x)) in PyTorch's convention. With a complex g, conj(g f'(x)) is
    # another number, so only a real one decides.
    real = [torch.complex(g.real, torch.zeros_like(g.real)) if g.is_complex() else g for g in result.cotangents]
    try:
        gradient = _vjp_afresh(audit, result, real)[comparison.input_index]
    except Raised:
        return False
    if gradient is None:
        return False
    conjugated = gradient.conj().resolve_conj()
    return agrees(audit.subject, replace(result, cotangents=real), comparison.input_index, conjugated, audit.generator)


def ignored_cotangents(audit: Audit, result: FirstOrder) -> list[int]:
    """Return the differentiable outputs whose cotangent does not affect any gradient.

    Decided on fresh runs: the gradient is recomputed with that cotangent multiplied by -3, and by 0, since a backward
    may read only its presence, or be even in it.
    """
    if not any(g is not None and bool((g.isfinite() & (g != 0)).any()) for g in result.gradients):
        return []
    positions = range(len(result.cotangents))
    return [position for position in positions if all(_is_unchanged_by(audit, result, position, by) for by in (-3, 0))]


def _is_unchanged_by(audit: Audit, result: FirstOrder, position: int, factor: float) -> bool:
    """Whether no gradient changes with one of the cotangents multiplied."""
    changed = list(result.cotangents)
    changed[position] = changed[position] * factor
    try:
        gradients = _vjp_afresh(audit, result, changed)
    except Raised:
        return False
    return difference(result.gradients, gradients, rounding=1e-12) is None


def _vjp_afresh(audit: Audit, result: FirstOrder, cotangents: list[Tensor]) -> list[Tensor | None]:
    return vjp(forward(audit.subject, result.case), cotangents)


_SINGLE = 5e-4
"""Relative error of the derivative that a chain of float32 operations may have."""
_A_PART = 0.5
"""Relative error that an unconverged iteration may leave; a lost factor gives a larger one."""
_ABOUT_SMALL = 10.0
"""Multiple of the largest small difference."""
_HALVINGS = 8
"""Bisections between the example and a variant: the difference begins at a point known to 1/256 of the way."""


def converges(audit: Audit, case: Case, input_index: int) -> bool:
    """Whether a wrong gradient becomes right with more iterations."""
    longer = more_iterations(case)
    others = set(range(len(case.wrt))) - {input_index}
    longer_result = None if longer is None else audit.compare(longer, skip_inputs=others)
    return longer_result is not None and any(
        c.input_index == input_index and c.status == "ok" for c in longer_result.comparisons
    )


def may_not_converge(audit: Audit, result: FirstOrder, c: Comparison) -> bool:
    """Whether a variant is off by less than its derivative, of a function that iterates to a tolerance."""
    part = c.gap < _A_PART * c.size
    return result.case.is_variant and part and iterates(audit.subject, audit.base, result.case)


def may_approximate(audit: Audit, c: Comparison) -> bool:
    """Whether a guessed call of a quadrature, a solver or the like is off by less than its derivative.

    How fine they are is a guess, too.
    """
    takes_functions = any(callable(value) and not isinstance(value, type | Tensor) for value in audit.base.values)
    return audit.guessed and takes_functions and c.gap < _A_PART * c.size


def is_coarse(audit: Audit, c: Comparison) -> bool:
    """Whether float32 explains a disagreement, on an example in float32 that was widened.

    Numbers that the function holds may be float32 still: the times of a solver, a table.
    """
    was_single = any(t.dtype == torch.float32 for case in audit.given for t in case.tensors)
    return was_single and c.gap < _SINGLE * c.size


def grows(audit: Audit, result: FirstOrder) -> bool:
    """Whether a difference grows continuously from the example to a variant, as an approximation error does.

    A wrong formula is wrong at once, or from a branch on. The error of a quadrature rule, of a truncated series or of a
    small constant is small for a while; where one input shows that, all of the variant is in doubt.
    """
    base, case = audit.base, result.case
    pairs = list(zip(base.values, case.values, strict=False))
    if not case.is_variant or len(base.values) != len(case.values) or any(not _differ_in_numbers(*p) for p in pairs):
        return False
    return any(_is_small_for_a_while(audit, case, c.input_index) for c in result.wrong)


def _is_small_for_a_while(audit: Audit, case: Case, input_index: int) -> bool:
    """Whether the difference is small at the point where bisection finds the gradient to become wrong."""
    right, wrong = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (right + wrong) / 2
        way = {p: torch.lerp(audit.base.values[p], case.values[p], middle) for p in case.wrt}
        between = audit.compare(case.with_values(way))
        found = [one for one in between.wrong if one.input_index == input_index] if between is not None else []
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
        alike = (x.shape, x.dtype, x.stride()) == (y.shape, y.dtype, y.stride())
        return alike and (is_differentiable(x) or torch.equal(x, y))
    return is_same_argument(x, y)


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
        x, gradient = result.case.tensors[right.input_index], result.gradients[right.input_index]
        if right.status != "ok" or gradient is None or not is_symmetric(x):
            continue
        found = compare_input(
            sampler, right.input_index, gradient, audit.generator, 1, audit.elements, within=lambda v, x: v
        )
        if found.status == "wrong" and not _uses_one_triangle(audit.subject, result, right.input_index):
            return found
    return None


def _uses_one_triangle(subject: Subject, result: FirstOrder, input_index: int) -> bool:
    """Whether a change of one triangle, above or below the diagonal, changes no output at all."""
    position = result.case.wrt[input_index]
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
