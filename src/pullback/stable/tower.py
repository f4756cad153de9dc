"""Derivatives of stable forms of every order: as composite forms for tracers, and as a tower in plain eager mode.

A certificate has the value and derivatives of first and second order. The next ones are the symbolic derivatives of
these (`Partials`). A composite form (`jet`) carries a fixed number of orders, so there is one for each
(`CompositeForms`). In plain eager mode autograd records a node for each derivative, and the next is computed on demand;
after the last form, it is the derivative of the formula as written (`DerivativeTower`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any

import torch
from torch import Tensor

from pullback import _torch, dispatch
from pullback.dispatch import World
from pullback.errors import DerivativeError
from pullback.stable.derivative import derivative
from pullback.stable.jet import By, Function, jet
from pullback.stable.meaning import Meaning
from pullback.stable.piecewise import Piecewise, emit
from pullback.stable.quick import Draft
from pullback.stable.rewriting import tidy
from pullback.stable.term import Term, topological, variables

MAX_ORDER = 4
"""Largest number of derivative orders that a composite form carries."""
_MOST_TERMS = 2000
"""Largest number of terms of a symbolic derivative; beyond, the formula is used as written."""


class CompositeForms:
    """The composite forms of a formula, by the number of derivative orders that they carry (`jet`).

    The number of times that a transform or tracer differentiates is unknown when the op is called, and each order has a
    cost: so there is one form for each number.

    Attributes:
        made: the forms made so far. Dynamo reads this table, since it cannot trace their construction.
    """

    def __init__(self, make: Callable[[int], Function]) -> None:
        self._make = make
        self.made: dict[int, Function] = {2: make(2)}

    def of(self, order: int) -> Function:
        """Composite form that carries a number of orders."""
        if order not in self.made:
            self.made[order] = self._make(order)
        return self.made[order]


class Partials:
    """The partial derivatives of a formula.

    Args:
        forms: forms of the value, and of the first and second order.
        sources: programs and drafts of the second order.
        meaning: meaning of the formula.
        dtype: dtype of the inputs.
    """

    def __init__(
        self,
        forms: Mapping[By, Function],
        sources: Mapping[By, Piecewise | Draft],
        meaning: Meaning,
        dtype: torch.dtype,
    ) -> None:
        self._forms, self._sources = dict(forms), dict(sources)
        self._meaning, self._dtype = meaning, dtype

    def up_to(self, order: int) -> dict[By, Function]:
        """All partial derivatives up to an order.

        Raises:
            DerivativeError: if one cannot be made.
        """
        n = range(len(self._meaning.variables))
        return {by: self.of(by) for k in range(1, order + 1) for by in combinations_with_replacement(n, k)}

    def find(self, by: By) -> Function | None:
        """A partial derivative, if composite forms carry its order and it can be made."""
        try:
            return self.of(by) if len(by) <= MAX_ORDER else None
        except DerivativeError:
            return None

    def of(self, by: By) -> Function:
        """Value or a partial derivative.

        Raises:
            DerivativeError: if it cannot be made.
        """
        if by not in self._forms:
            source, names = self._source(by), self._meaning.variables
            program = source if isinstance(source, Piecewise) else source.program
            # the derivative of x·y by y may be a number where y is NaN
            read = {name for term, _ in program.terms() for name in variables(term)}
            label = " ".join((self._meaning.name, *(names[i] for i in by)))
            self._forms[by] = emit(program, names, self._dtype, label, set(names) - read)
        return self._forms[by]

    def _source(self, by: By) -> Piecewise | Draft:
        if by not in self._sources:
            try:
                source = self._source(by[:-1]).derivative(self._meaning.variables[by[-1]])
            except DerivativeError:  # a form may use ops that formulas may not
                source = Piecewise.of(self._as_written(by))
            terms = source.terms() if isinstance(source, Piecewise) else [(source.term, source.wide)]
            if sum(len(topological([term])) for term, _ in terms) > _MOST_TERMS:
                raise DerivativeError(f"the derivative of order {len(by)} of {self._meaning.name} is too long.")
            self._sources[by] = source
        return self._sources[by]

    def _as_written(self, by: By) -> Term:
        term = self._meaning.term
        for i in by:
            term = tidy(derivative(term, self._meaning.variables[i]))
        return term


def composite_of(partials: Partials, written: Callable[..., Tensor]) -> CompositeForms:
    """Composite forms of a formula; `written` is the formula, for orders that cannot be made."""

    def make(order: int) -> Function:
        try:
            return jet(partials.of(()), partials.up_to(order))
        except DerivativeError:
            return written

    return CompositeForms(make)


class DerivativeTower:
    """A function of tensors of one shape, and its derivatives.

    Args:
        form: returns the form of the value or of a derivative, or `None`.
        written: the formula, which autograd differentiates further.
    """

    def __init__(self, form: Callable[[By], Function | None], written: Function) -> None:
        self.form, self._written = form, written

    def __call__(self, *given: Tensor) -> Tensor:
        """Value; in plain eager mode autograd records a node that differentiates it further."""
        return self.of((), torch.broadcast_tensors(*given))

    def of(self, by: By, xs: Sequence[Tensor]) -> Tensor:
        """Derivative; where autograd records, one that it can differentiate further."""
        form = self.form(by)
        if form is not None:
            if not torch.is_grad_enabled():
                return form(*xs)
            if dispatch.world() is World.EAGER:
                out: Tensor = _apply(self, form, by, *xs)
                return out
        return self._as_written(by, xs)

    def _as_written(self, by: By, xs: Sequence[Tensor]) -> Tensor:
        record = torch.is_grad_enabled()
        with torch.enable_grad():
            aliases = [x.view_as(x) if x.requires_grad else x.detach().requires_grad_() for x in xs]
            out = self._written(*aliases)
            for i in by:
                if not out.requires_grad:
                    return torch.zeros_like(out)
                ones = torch.ones_like(out)
                (out,) = torch.autograd.grad(
                    out, aliases[i], ones, create_graph=True, allow_unused=True, materialize_grads=True
                )
        return out if record else out.detach()


class _TowerNode(torch.autograd.Function):
    """One derivative, whose gradient is the next."""

    @staticmethod
    def forward(ctx: Any, tower: DerivativeTower, form: Function, by: By, *xs: Tensor) -> Tensor:
        ctx.tower, ctx.by = tower, by
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*xs)
        return form(*xs)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> tuple[Any, ...]:
        if g is None:
            return (None,) * len(ctx.needs_input_grad)
        xs, by = ctx.saved_tensors, ctx.by
        wanted = ctx.needs_input_grad[3:]
        # mixed partials do not depend on the order (Schwarz's theorem), so there is one form for each multiset
        gs = [g * ctx.tower.of(tuple(sorted((*by, i))), xs) if needed else None for i, needed in enumerate(wanted)]
        return (None, None, None, *gs)


_apply = _torch.eager_apply(_TowerNode)
