"""Float64 bounds of exact values: terms over intervals, and equal terms whose intervals are tighter.

PyTorch's float64 kernels are taken to be within 2⁻⁴⁸ of the exact value, relatively (16 ulp; `trigamma` 2⁻³⁰; `lgamma`
and `digamma`, which have roots, by as much absolutely). That is an assumption: callers test the bounds against the
oracle at some of the points. Nothing else is assumed: where a value overflows, cancels or cannot be bounded, the
interval is wide, or the whole line.

A formula that cancels has wide intervals. The forms that replace it do not cancel, so their intervals, computed in
float64, are tight: `references` collects them from the quick rules and from the certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from pullback.errors import FormulaError
from pullback.ops.bounds import KERNEL, ROUNDING, Condition, Interval, around, exactly
from pullback.ops.constants import VALUES
from pullback.ops.registry import OPS
from pullback.stable import certificate
from pullback.stable.formula import Callee, Quantity
from pullback.stable.meaning import Meaning
from pullback.stable.piecewise import Piecewise
from pullback.stable.quick import drafts_of
from pullback.stable.term import CONST, NAMED, VAR, Term, const, topological


def enclose(roots: Sequence[Term], points: Mapping[str, Tensor]) -> list[Interval]:
    """Intervals that hold the values of terms.

    Args:
        roots: the terms.
        points: the values of every variable, float64.

    Raises:
        FormulaError: for a polynomial, which is an approximation, and for a condition.
    """
    found: dict[Term, Interval | Condition] = {}
    for term in topological(roots):
        if term.op == VAR:
            found[term] = exactly(points[term.value])
        elif term.op in (CONST, NAMED):
            found[term] = _constant(term)
        elif term.op in OPS:
            found[term] = OPS[term.op].bounds(*(found[a] for a in term.args))
        else:
            raise FormulaError(f"there are no float64 bounds for {term.op}")
    intervals = [found[root] for root in roots]
    like = next(iter(points.values()))
    return [_sized(interval, like) for interval in intervals]


_LONG = 2**36
"""Constants with a larger denominator may be products of others that were rounded, by a search."""


def _constant(term: Term) -> Interval:
    value = VALUES[term.value] if term.op == NAMED else float(term.value)
    number = torch.tensor(value, dtype=torch.float64)
    if term.op == CONST and term.value.denominator > _LONG:
        return around(number, number, KERNEL)
    exact = term.op == CONST and term.value == value
    return exactly(number) if exact else around(number, number, ROUNDING)


def _sized(interval: Interval | Condition, like: Tensor) -> Interval:
    """Interval expanded to the size of the input: that of a term without variables has none."""
    if isinstance(interval, Condition):
        raise FormulaError("there are no bounds for a condition")
    undefined = interval.undefined
    undefined = None if undefined is None else undefined.expand_as(like)
    return Interval(interval.low.expand_as(like), interval.high.expand_as(like), undefined)


def has_bounds(root: Term) -> bool:
    """Whether there are bounds for a term: not for polynomials."""
    return all(term.op in OPS or term.op in (VAR, CONST, NAMED) for term in topological([root]))


References = dict[Quantity, tuple[Term, ...]]
"""For each quantity terms that equal its own."""


def references(function: Callable[..., Any], args: Mapping[str, Any], terms: Mapping[Quantity, Term]) -> References:
    """Other terms of the quantities of a function of one variable, for float32.

    Args:
        function: function whose exact values the terms are.
        args: values of its parameters that do not vary.
        terms: terms of its values and derivatives.
    """
    callee = Callee(function, args)
    found: dict[Quantity, list[Term]] = {quantity: [] for quantity in terms}
    if callee.relaxation is not None:  # its derivatives are not those of its value
        return {}
    for quantity in [q for q in terms if not q.by]:
        meaning = Meaning(callee.name, terms[quantity], callee.variables)
        for by, draft in (drafts_of(meaning) or {}).items():
            found.get(Quantity(quantity.output, by), []).append(draft.term)
        for known in _certificates(callee.formula, meaning):
            for by, form in known.forms.items():
                of = Quantity(quantity.output, by)
                if of in terms:
                    found[of].append(_one_term(form.program, terms[of]))
    return {
        quantity: tuple(dict.fromkeys(t for t in others if t is not terms[quantity] and has_bounds(t)))
        for quantity, others in found.items()
    }


def _certificates(formula: Callable[..., Any], meaning: Meaning) -> list[certificate.Certificate]:
    """Certificate of a formula beside its module, or else in the user's cache."""
    key = (str(meaning.term), meaning.variables, "float32", "cpu")
    for path in (certificate.path_beside_function(formula), certificate.cache_path(key)):
        try:
            if path is not None and (found := certificate.load(path, key)):
                return found
        except (OSError, RuntimeError, ValueError):  # the file may be anybody's; measuring goes without it
            continue
    return []


def _one_term(program: Piecewise, own: Term) -> Term:
    """Program as one term with the same choices; the quantity's own term where it cannot be bounded."""
    chosen: Term | None = None
    for piece in reversed(program.pieces):
        body = _one_term(piece.body, own) if isinstance(piece.body, Piecewise) else piece.body
        if not has_bounds(body):  # a polynomial, which is an approximation
            body = own
        if chosen is None or program.branch is None:
            chosen = body
        else:
            below = Term("le", (program.branch, const(Fraction(piece.upper))))
            chosen = Term("where", (below, body, chosen))
    assert chosen is not None, "a program has a piece"
    return chosen
