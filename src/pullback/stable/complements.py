"""Distances from 1 that vanish faster than any precision shows, and zeros that no precision shows, written exactly.

1 − sigmoid(x) is e⁻ˣ for large x: at x = 6000 a ball of 8192 bits contains 0, so its logarithm is unbounded. No
precision proves that sin(πx) is 0 at an integer, or eˣ − e⁻⁴ at −4. The identities hold for all real numbers, so a term
keeps its values and its holes.
"""

from __future__ import annotations

from collections.abc import Iterable

from pullback.ops.constants import EXPONENTIALS, LOGARITHMS, ROOTS
from pullback.stable.term import VAR, Term, parse, substitute, topological

IDENTITIES = {
    parse(difference): parse(instead)
    for difference, instead in {
        "1/(1 + exp(a))": "sigmoid(-a)",
        "1/(exp(a) + 1)": "sigmoid(-a)",
        "exp(a)/(1 + exp(a))": "sigmoid(a)",
        "exp(a)/(exp(a) + 1)": "sigmoid(a)",
        "1 - sigmoid(a)": "sigmoid(-a)",
        "sigmoid(a) - 1": "-sigmoid(-a)",
        "log1p(-sigmoid(a))": "-softplus(a)",
        "1 - tanh(a)": "2*sigmoid(-2*a)",
        "1 + tanh(a)": "2*sigmoid(2*a)",
        "tanh(a) + 1": "2*sigmoid(2*a)",
        "1 - tanh(a)*tanh(a)": "4*(sigmoid(2*a)*sigmoid(-2*a))",
        "1 - erf(a)": "erfc(a)",
        "1 + erf(a)": "erfc(-a)",
        "erf(a) + 1": "erfc(-a)",
        "sin(PI*a)": "sinpi(a)",
        "sin(a*PI)": "sinpi(a)",
        "cos(PI*a)": "cospi(a)",
        "cos(a*PI)": "cospi(a)",
        **{f"exp(a) - {name}": f"{name}*expm1(a - ({n}))" for name, n in EXPONENTIALS.items()},
        **{f"log(a) - {name}": f"log1p((a - {n})/{n})" for name, n in LOGARITHMS.items()},
        **{f"sqrt(a) - {name}": f"(a - {n})/(sqrt(a) + {name})" for name, n in ROOTS.items()},
    }.items()
}
"""Of terms in a, the same function without cancellation."""


def resolved(roots: Iterable[Term]) -> list[Term]:
    """Return terms of the same values, in which such differences are replaced."""
    roots = list(roots)
    made: dict[Term, Term] = {}
    for term in topological(roots):
        made[term] = _resolved(Term(term.op, tuple(made[a] for a in term.args), term.value))
    return [made[root] for root in roots]


def _resolved(term: Term) -> Term:
    for difference, instead in IDENTITIES.items():
        if difference.op == term.op:
            bound: dict[Term, Term] = {}
            if _matches(difference, term, bound):
                return substitute(instead, bound)
    return term


def _matches(pattern: Term, term: Term, bound: dict[Term, Term]) -> bool:
    if pattern.op == VAR:
        return bound.setdefault(pattern, term) is term
    return pattern is term or (
        pattern.op == term.op
        and len(pattern.args) == len(term.args) > 0
        and all(_matches(p, t, bound) for p, t in zip(pattern.args, term.args, strict=True))
    )
