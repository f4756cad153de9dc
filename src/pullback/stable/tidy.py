"""Shorter terms with the same bits: removes remnants of the search's rules."""

from __future__ import annotations

from pullback.stable.term import CONST, Term, const, topological

_ONE = const(1)


def tidy(root: Term) -> Term:
    """Return a bit-identical term without 1 · a, a − (−1), a + (−b) and the like."""
    made: dict[Term, Term] = {}
    for term in topological([root]):
        made[term] = _tidied(term.op, tuple(made[a] for a in term.args), term)
    return made[root]


def _tidied(op: str, args: tuple[Term, ...], original: Term) -> Term:
    match op, args:
        case "mul", (a, b) if _ONE in (a, b):
            return b if a is _ONE else a
        case "div", (a, b) if b is _ONE:
            return a
        case "neg", (a,) if a.op == "neg":
            return a.args[0]
        case "neg", (a,) if a.op == CONST:
            return const(-a.value)
        case "sub", (a, b) if b.op == CONST and b.value < 0:
            return Term("add", (a, const(-b.value)))
        case "sub", (a, b) if b.op == "neg":
            return _tidied("add", (a, b.args[0]), original)
        case "add", (a, b) if b.op == "neg":
            return Term("sub", (a, b.args[0]))
        case "add", (a, b) if a.op == "neg":
            return Term("sub", (b, a.args[0]))
    return Term(op, args, original.value) if args else original
