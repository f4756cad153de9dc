"""The measured function: its values and derivatives by autograd, and the terms of the exact ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.errors import FormulaError, tell_mistake
from pullback.graph.trace import op_name
from pullback.stable.callee import Callee
from pullback.stable.graphs import terms_of
from pullback.stable.removable import exact_derivative
from pullback.stable.term import Term
from pullback.stable.written import as_written


@dataclass(frozen=True, slots=True)
class Quantity:
    """The value of a function, or one of its derivatives.

    Attributes:
        output: position among its floating-point results.
        by: the variables that it is differentiated by, in their order.
    """

    output: int
    by: tuple[str, ...]

    def label(self, outputs: int) -> str:
        """Return the name of the quantity, for a function with a number of results."""
        which = f"[{self.output}]" if outputs > 1 else ""
        if not self.by:
            return f"value{which}"
        order = {1: "", 2: "²"}[len(self.by)]
        names = [f"{name}²" if self.by.count(name) == 2 else name for name in dict.fromkeys(self.by)]
        return f"d{order}{which}/{' '.join(f'd{name}' for name in names)}"


class Formula:
    """A function and its derivatives, to run and to know exactly.

    Attributes:
        name: of the function.
        variables: the names of the tensors that it takes.
    """

    def __init__(self, function: Callable[..., Any], args: Mapping[str, Any] | None = None) -> None:
        """Take a function apart, as `Callee` does.

        Raises:
            OptionError: if it cannot be called with tensors alone.
        """
        self._callee = Callee(function, args)
        self.name, self.variables = self._callee.name, self._callee.variables

    def run(self, tensors: Sequence[Tensor], order: int) -> dict[Quantity, Tensor]:
        """Return the values and derivatives up to an order, as the function and autograd compute them.

        Raises:
            FormulaError: if a result has another shape than the tensors.
        """
        xs = [x.detach().requires_grad_() for x in tensors]
        found: dict[Quantity, Tensor] = {}
        with torch.enable_grad():
            for i, out in enumerate(self._callee(*xs)):
                if out.shape != xs[0].shape:
                    shapes = f"{tuple(xs[0].shape)} to {tuple(out.shape)}"
                    raise FormulaError(f"{self.name} takes {shapes}: accuracy is of pointwise formulas")
                self._differentiate(Quantity(i, ()), out, xs, order, found)
        return {quantity: out.detach() for quantity, out in found.items()}

    def code(self, dtype: torch.dtype, order: int) -> str:
        """Return the ATen ops that `run` runs, as text; empty if they cannot be recorded."""
        example = [torch.ones(3, dtype=dtype) for _ in self.variables]
        try:
            with _torch.without_fake_tensor_log():
                module = _torch.trace_ops(lambda *xs: list(self.run(xs, order).values()), *example)
        except Exception as error:  # a function that cannot be traced is measured all the same
            tell_mistake(error, self.name)
            return ""
        return module.code

    def _differentiate(
        self, quantity: Quantity, out: Tensor, xs: Sequence[Tensor], order: int, found: dict[Quantity, Tensor]
    ) -> None:
        found[quantity] = out
        if not order:
            return
        slopes: Sequence[Tensor] = [torch.zeros_like(x) for x in xs]
        if out.requires_grad:
            ones = torch.ones_like(out)
            found_slopes = torch.autograd.grad(
                out, xs, ones, retain_graph=True, create_graph=order > 1, allow_unused=True
            )
            slopes = [
                torch.zeros_like(x, requires_grad=order > 1) if slope is None else slope
                for x, slope in zip(xs, found_slopes, strict=True)
            ]
        first = self.variables.index(quantity.by[-1]) if quantity.by else 0  # mixed derivatives once
        for name, slope in list(zip(self.variables, slopes, strict=True))[first:]:
            self._differentiate(Quantity(quantity.output, (*quantity.by, name)), slope, xs, order - 1, found)

    def result(self, tensors: Sequence[Tensor]) -> Any:
        """Return the formula's result, of any type."""
        return self._callee.result(self._callee.formula, tensors)

    def terms(
        self,
        dtype: torch.dtype,
        order: int,
        shapes: Sequence[tuple[int, ...]] = ((3,), (5,)),
        derive: Callable[[Term, str], Term] = exact_derivative,
    ) -> dict[Quantity, Term]:
        """Return the terms of values and derivatives up to an order; for a relaxed op those of its relaxation.

        Args:
            dtype: of the tensors in the trace: the function may branch on it.
            order: of the derivatives.
            shapes: of these tensors; the terms must be the same for each.
            derive: differentiates a term by a variable; `derivative` needs no ball arithmetic.

        Raises:
            FormulaError: if the function is not a pointwise formula of ops in the table, or cannot be traced.
            DerivativeError: if an op on the way has no derivative in the table.
        """
        values = self._traced(self._callee.formula, dtype, order, shapes)
        soft = self._callee.relaxation
        slopes = values if soft is None or not order else self._traced(soft, dtype, order, shapes)
        found: dict[Quantity, Term] = {}
        for output in range(len(values)):
            for by in (by for n in range(order + 1) for by in combinations_with_replacement(self.variables, n)):
                term = (slopes if by else values)[output]
                for name in by:
                    term = derive(term, name)
                found[Quantity(output, by)] = term
        return found

    def _traced(
        self, function: Callable[..., Any], dtype: torch.dtype, order: int, shapes: Sequence[tuple[int, ...]]
    ) -> list[Term]:
        first, *others = (self._recorded(function, dtype, shape, order) for shape in shapes)
        if any(other != first for other in others):
            raise FormulaError(f"{self.name} depends on the shape of its input: accuracy is of pointwise formulas")
        if not first:
            raise FormulaError(f"{self.name} returns no floating-point tensor")
        return first

    def _recorded(
        self, function: Callable[..., Any], dtype: torch.dtype, shape: tuple[int, ...], order: int
    ) -> list[Term]:
        example = [torch.ones(shape, dtype=dtype) for _ in self.variables]
        try:
            with torch.no_grad(), as_written(), _torch.without_fake_tensor_log():
                module = _torch.trace_ops(lambda *xs: self._callee.results(function, xs), *example)
        except Exception as error:  # any error of a user's function or the tracer
            tell_mistake(error, self.name)
            raise FormulaError(f"{self.name} {_why(error)}") from error
        detaches = any(op_name(node) == "detach" for node in module.graph.nodes if node.op == "call_function")
        if order and detaches and (self._callee.relaxation is None or function is self._callee.relaxation):
            raise FormulaError(f"{self.name} calls detach: its derivative is not that of its formula (measure order 0)")
        try:
            return terms_of(module, self.variables)
        except FormulaError as error:
            raise FormulaError(f"{self.name}: {error}") from None


def _why(error: Exception) -> str:
    """Return the reason why a function could not be traced."""
    if isinstance(error, _torch.DATA_DEPENDENT) or "data-dependent" in str(error):
        return "decides by the values of its tensors: accuracy is of formulas"
    return f"cannot be traced: {next(iter(str(error).strip().splitlines()), type(error).__name__)}"
