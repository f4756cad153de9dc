"""Products of values with whole exponents, and sums of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import fx


@dataclass(frozen=True, slots=True)
class Monomial:
    """A product of powers.

    Attributes:
        factors: nodes with their exponents, none of them 0, in an order of their names.
    """

    factors: tuple[tuple[fx.Node, int], ...] = ()

    @classmethod
    def of(cls, node: fx.Node) -> Monomial:
        """Return a value as a product."""
        return cls(((node, 1),))

    def exponent(self, node: fx.Node) -> int:
        """Return the exponent of a node, 0 if it is no factor."""
        return dict(self.factors).get(node, 0)

    def times(self, other: Monomial) -> Monomial:
        """Return a product of two."""
        exponents = dict(self.factors)
        for node, power in other.factors:
            exponents[node] = exponents.get(node, 0) + power
        return _monomial(exponents)

    def power(self, exponent: int) -> Monomial:
        """Return a power."""
        return _monomial({node: power * exponent for node, power in self.factors})


def _monomial(exponents: dict[fx.Node, int]) -> Monomial:
    return Monomial(tuple(sorted(((n, p) for n, p in exponents.items() if p), key=lambda item: item[0].name)))


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum of products.

    Attributes:
        terms: the coefficient of each; none is 0.
    """

    terms: dict[Monomial, float]

    def plus(self, other: Sum) -> Sum:
        """Return the sum of two."""
        terms = dict(self.terms)
        for m, c in other.terms.items():
            terms[m] = terms.get(m, 0.0) + c
        return Sum({m: c for m, c in terms.items() if c})

    def scaled(self, factor: float) -> Sum:
        """Return a multiple."""
        return Sum({m: c * factor for m, c in self.terms.items()})

    def simplified(self, change: Callable[[Monomial], Monomial]) -> Sum:
        """Return the sum with each product changed."""
        found = Sum({})
        for m, c in self.terms.items():
            found = found.plus(Sum({change(m): c}))
        return found


def factored(found: Sum) -> tuple[Monomial, Sum]:
    """Return the greatest common factor of the terms, and the sum divided by it."""
    first, *others = found.terms
    common = dict(first.factors)
    for m in others:
        common = {n: min(p, m.exponent(n)) if p > 0 else max(p, m.exponent(n)) for n, p in common.items()}
        common = {n: p for n, p in common.items() if p and m.exponent(n) * p > 0}
    divisor = _monomial(common)
    return divisor, Sum({m.times(divisor.power(-1)): c for m, c in found.terms.items()})
