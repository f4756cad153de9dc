"""Terms that equal a formula or a derivative and that float64 may evaluate better: for bounds of exact values.

They come from the rules of the quick pass and from the formula's certificate, if it has one: the same forms that are
computed in place of the formula, here all in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from pullback.stable import certificate
from pullback.stable.callee import Callee
from pullback.stable.enclose import has_bounds
from pullback.stable.formula import Quantity
from pullback.stable.meant import Meaning
from pullback.stable.piecewise import Program
from pullback.stable.quick import drafts_of
from pullback.stable.term import Term, const

References = dict[Quantity, tuple[Term, ...]]
"""For each quantity terms that equal its own."""


def references(function: Callable[..., Any], args: Mapping[str, Any], terms: Mapping[Quantity, Term]) -> References:
    """Return other terms of the quantities of a function of one variable, for float32.

    Args:
        function: whose exact values the terms are.
        args: for its parameters that do not vary.
        terms: of its values and derivatives.
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
    """Return the certificate of a formula beside its module, or else in the user's cache."""
    key = (str(meaning.term), meaning.variables, "float32", "cpu")
    for path in (certificate.beside_function(formula), certificate.cached(key)):
        try:
            if path is not None and (found := certificate.load(path, key)):
                return found
        except (OSError, RuntimeError, ValueError):  # the file may be anybody's; measuring goes without it
            continue
    return []


def _one_term(program: Program, own: Term) -> Term:
    """Return a program as one term with the same choices; the quantity's own term where it cannot be bounded."""
    chosen: Term | None = None
    for piece in reversed(program.pieces):
        body = _one_term(piece.body, own) if isinstance(piece.body, Program) else piece.body
        if not has_bounds(body):  # a polynomial, which is an approximation
            body = own
        if chosen is None or program.branch is None:
            chosen = body
        else:
            below = Term("le", (program.branch, const(Fraction(piece.upper))))
            chosen = Term("where", (below, body, chosen))
    assert chosen is not None, "a program has a piece"
    return chosen
