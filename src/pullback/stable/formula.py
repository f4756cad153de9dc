"""A measured function: how it is called, its derivatives by autograd, and the terms of the exact ones.

While a formula is traced for its terms, the ops that it calls compute their own formulas as written (`as_written`), and
no stable forms: a term stands for what the author wrote.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.errors import FormulaError, OptionError, report_internal_error
from pullback.graph.trace import op_name
from pullback.stable.derivative import exact_derivative
from pullback.stable.graphs import terms_of
from pullback.stable.term import Term


class _Local(threading.local):
    reading = False


_local = _Local()


@contextmanager
def as_written() -> Iterator[None]:
    """Have every op of this thread compute its formula as written, and use no stable forms."""
    before = _local.reading
    _local.reading = True
    try:
        yield
    finally:
        _local.reading = before


def is_as_written() -> bool:
    """Whether ops of this thread compute their formulas as written."""
    return _local.reading


_MOST_VARIABLES = 3
_NAMES = "xyz"
_PLAIN = frozenset({bool, int, float, str, "bool", "int", "float", "str"})


class Callee:
    """A function of one to three tensors, with its other parameters fixed.

    Attributes:
        name: name of the function.
        variables: the names of the tensors.
        formula: for an op of `pullback.function`, the function that computes its value; else the function itself.
        relaxation: for a relaxed op, the function that its derivatives are of; else `None`.
    """

    def __init__(self, function: Callable[..., Any], args: Mapping[str, Any] | None = None) -> None:
        """Take a function apart.

        Args:
            function: a callable, an op of `pullback.function`, or an `autograd.Function` class.
            args: values for parameters that are not to vary.

        Raises:
            OptionError: if it has no tensors to vary or too many, or a value for a plain parameter is missing.
        """
        target: Any = function
        self.name: str = getattr(target, "__name__", type(target).__name__)
        self._function: Callable[..., Any] = target.apply if _is_function_class(target) else target
        self._fixed = dict(args or {})
        self._signature = _signature_of(target)
        is_op = bool(getattr(type(target), "_is_pullback_op", False))
        self._residuals = is_op and target._residuals
        self.formula: Callable[..., Any] = target._formula if is_op else self._function
        self.relaxation: Callable[..., Any] | None = target.relaxation if is_op else None
        self.variables = self._by_signature(self._signature) if self._signature is not None else self._by_trial()

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Call the function; return its floating-point results."""
        return self.results(self._function, tensors)

    def results(self, function: Callable[..., Any], tensors: Sequence[Tensor]) -> list[Tensor]:
        """Floating-point results of a function with the same parameters."""
        leaves, _ = _torch.tree_leaves(self.result(function, tensors))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]

    def result(self, function: Callable[..., Any], tensors: Sequence[Tensor]) -> Any:
        """Result of a function with the same parameters, without residuals."""
        if self._signature is None:
            result = function(*tensors, **self._fixed)
        else:
            given: dict[str, Any] = dict(zip(self.variables, tensors, strict=True)) | self._fixed
            bound = self._signature.bind_partial()
            bound.arguments = {name: given[name] for name in self._signature.parameters if name in given}
            result = function(*bound.args, **bound.kwargs)
        return result[0] if self._residuals and function is self.formula else result

    def _by_signature(self, signature: inspect.Signature) -> tuple[str, ...]:
        parameters = signature.parameters
        for name in self._fixed:
            if name not in parameters:
                raise OptionError(f"{self.name} has no parameter {name!r}")
        needed = [p for p in parameters.values() if p.default is p.empty and p.name not in self._fixed]
        for p in needed:
            if p.annotation in _PLAIN or p.kind is p.KEYWORD_ONLY:
                raise OptionError(f"{self.name} needs a value for its parameter {p.name!r}: give it in args")
        if not 1 <= len(needed) <= _MOST_VARIABLES:
            what = f"takes {len(needed)} arguments without a default"
            raise OptionError(f"{self.name} {what}: accuracy is of functions of 1 to {_MOST_VARIABLES} tensors")
        return tuple(p.name for p in needed)

    def _by_trial(self) -> tuple[str, ...]:
        """Name the tensors of a built-in function, which has no signature."""
        for n in range(1, _MOST_VARIABLES + 1):
            try:
                if self.results(self._function, [torch.full((2,), 0.5) for _ in range(n)]):
                    return tuple(_NAMES[:n])
            except (TypeError, RuntimeError, ValueError, IndexError):
                continue
        raise OptionError(f"{self.name} cannot be called with 1 to {_MOST_VARIABLES} tensors alone")


def _is_function_class(function: Any) -> bool:
    return isinstance(function, type) and issubclass(function, torch.autograd.Function)


def _signature_of(function: Any) -> inspect.Signature | None:
    """Signature of a call; `None` if there is none to see (a built-in, `*args`)."""
    try:
        if _is_function_class(function):
            parameters = list(inspect.signature(function.forward).parameters.values())
            takes_ctx = function.setup_context is torch.autograd.Function.setup_context
            signature = inspect.Signature(parameters[1:] if takes_ctx else parameters)
        else:
            signature = inspect.signature(function)
    except (ValueError, TypeError):
        return None
    variadic = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
    return None if variadic else signature


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
        """Name of the quantity, for a function with a number of results."""
        which = f"[{self.output}]" if outputs > 1 else ""
        if not self.by:
            return f"value{which}"
        order = {1: "", 2: "²"}[len(self.by)]
        names = [f"{name}²" if self.by.count(name) == 2 else name for name in dict.fromkeys(self.by)]
        return f"d{order}{which}/{' '.join(f'd{name}' for name in names)}"


class Formula:
    """A function and its derivatives, to run and to know exactly.

    Attributes:
        name: name of the function.
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
        """Values and derivatives up to an order, as the function and autograd compute them.

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
        """ATen ops that `run` runs, as text; empty if they cannot be recorded."""
        example = [torch.ones(3, dtype=dtype) for _ in self.variables]
        try:
            with _torch.without_fake_tensor_log():
                module = _torch.trace_ops(lambda *xs: list(self.run(xs, order).values()), *example)
        except Exception as error:  # a function that cannot be traced is measured all the same
            report_internal_error(error, self.name)
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
        """Result of the formula, of any type."""
        return self._callee.result(self._callee.formula, tensors)

    def terms(
        self,
        dtype: torch.dtype,
        order: int,
        shapes: Sequence[tuple[int, ...]] = ((3,), (5,)),
        derive: Callable[[Term, str], Term] = exact_derivative,
    ) -> dict[Quantity, Term]:
        """Terms of values and derivatives up to an order; for a relaxed op those of its relaxation.

        Args:
            dtype: dtype of the tensors in the trace: the function may branch on it.
            order: order of the derivatives.
            shapes: shapes of these tensors; the terms must be the same for each.
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
            report_internal_error(error, self.name)
            raise FormulaError(f"{self.name} {_why(error)}") from error
        detaches = any(op_name(node) == "detach" for node in module.graph.nodes if node.op == "call_function")
        if order and detaches and (self._callee.relaxation is None or function is self._callee.relaxation):
            raise FormulaError(f"{self.name} calls detach: its derivative is not that of its formula (measure order 0)")
        try:
            return terms_of(module, self.variables)
        except FormulaError as error:
            raise FormulaError(f"{self.name}: {error}") from None


def _why(error: Exception) -> str:
    """Reason why a function could not be traced."""
    if isinstance(error, _torch.DATA_DEPENDENT) or "data-dependent" in str(error):
        return "decides by the values of its tensors: accuracy is of formulas"
    return f"cannot be traced: {next(iter(str(error).strip().splitlines()), type(error).__name__)}"
