"""The native forms of a formula, for each number of orders: beyond the stable forms, by the derivatives of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from pullback.errors import DerivativeError
from pullback.stable.derive import derivative
from pullback.stable.emit import emit
from pullback.stable.jet import By, Function, jet
from pullback.stable.meant import Meaning
from pullback.stable.piecewise import Program
from pullback.stable.quick import Draft
from pullback.stable.term import Term, topological, variables
from pullback.stable.tidy import tidy

MOST = 4
"""Orders that a native form carries."""
_MOST_TERMS = 2000
"""Of a derivative that is made here; beyond, the formula stands as written."""


class Native:
    """The native forms of a formula, by the number of derivative orders that they carry (`jet`).

    The number of times that a transform or tracer differentiates is unknown when the op is called, and each order has a
    cost: so there is one form for each number.

    Attributes:
        made: the forms made so far. Dynamo reads this table, since it cannot trace their construction.
    """

    def __init__(self, make: Callable[[int], Function]) -> None:
        self._make = make
        self.made: dict[int, Function] = {2: make(2)}

    def of(self, order: int) -> Function:
        """Return the native form that carries a number of orders."""
        if order not in self.made:
            self.made[order] = self._make(order)
        return self.made[order]


class Partials:
    """The partial derivatives of a formula.

    Args:
        forms: of the value, and of the first and second order.
        sources: programs and drafts of the second order.
        meaning: of the formula.
        dtype: of the inputs.
    """

    def __init__(
        self, forms: Mapping[By, Function], sources: Mapping[By, Program | Draft], meaning: Meaning, dtype: torch.dtype
    ) -> None:
        self._forms, self._sources = dict(forms), dict(sources)
        self._meaning, self._dtype = meaning, dtype

    def up_to(self, order: int) -> dict[By, Function]:
        """Return all up to an order.

        Raises:
            DerivativeError: if one cannot be made.
        """
        n = range(len(self._meaning.variables))
        return {by: self.of(by) for k in range(1, order + 1) for by in combinations_with_replacement(n, k)}

    def find(self, by: By) -> Function | None:
        """Return one, if native forms carry its order and it can be made."""
        try:
            return self.of(by) if len(by) <= MOST else None
        except DerivativeError:
            return None

    def of(self, by: By) -> Function:
        """Return the value or a partial derivative.

        Raises:
            DerivativeError: if it cannot be made.
        """
        if by not in self._forms:
            source, names = self._source(by), self._meaning.variables
            program = source if isinstance(source, Program) else source.program
            # the derivative of x·y by y may be a number where y is NaN
            read = {name for term, _ in program.terms() for name in variables(term)}
            label = " ".join((self._meaning.name, *(names[i] for i in by)))
            self._forms[by] = emit(program, names, self._dtype, label, set(names) - read)
        return self._forms[by]

    def _source(self, by: By) -> Program | Draft:
        if by not in self._sources:
            try:
                source = self._source(by[:-1]).derivative(self._meaning.variables[by[-1]])
            except DerivativeError:  # a form may use ops that formulas may not
                source = Program.of(self._as_written(by))
            terms = source.terms() if isinstance(source, Program) else [(source.term, source.wide)]
            if sum(len(topological([term])) for term, _ in terms) > _MOST_TERMS:
                raise DerivativeError(f"the derivative of order {len(by)} of {self._meaning.name} is too long.")
            self._sources[by] = source
        return self._sources[by]

    def _as_written(self, by: By) -> Term:
        term = self._meaning.term
        for i in by:
            term = tidy(derivative(term, self._meaning.variables[i]))
        return term


def native_of(partials: Partials, written: Callable[..., Tensor]) -> Native:
    """Return the native forms of a formula; `written` is the formula, for orders that cannot be made."""

    def make(order: int) -> Function:
        try:
            return jet(partials.of(()), partials.up_to(order))
        except DerivativeError:
            return written

    return Native(make)
