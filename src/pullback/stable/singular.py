"""Subterms at whose zeros an op is singular: denominators, arguments of logarithms and square roots, bases of powers.

Poles, removable holes and ends of domains lie at these zeros, and they may show in no sample of the whole term.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from pullback.ops.registry import OPS
from pullback.stable.term import Term, parse, substitute, topological, var, variables


def singular_at(roots: Iterable[Term]) -> list[Term]:
    """Return the subterms of some terms at whose zeros an op is singular, without variables and constants alone."""
    found: dict[Term, None] = {}
    for term in topological(roots):
        for operand in _operands(term):
            found.update(dict.fromkeys(f for f in _factors(operand) if f.args and variables(f)))
    return list(found)


def _operands(term: Term) -> Iterator[Term]:
    for text in OPS[term.op].singular if term.op in OPS else ():
        yield substitute(_template(text), dict(zip(_NAMES, term.args, strict=False)))


_NAMES = tuple(map(var, "abc"))
_template = cache(parse)


def _factors(term: Term) -> Iterator[Term]:
    """Yield the factors of a product, whose own zeros may be even ones of the product: (x − 3)² changes no sign."""
    waiting = [term]
    while waiting:
        factor = waiting.pop()
        if factor.op == "mul":
            waiting += factor.args
        elif factor.op in ("neg", "abs", "pow", "sqrt", "rsqrt"):
            waiting.append(factor.args[0])
        elif factor.op == "div":
            waiting += factor.args
        else:
            yield factor
