"""Calling convention of a measured function: the parameters that vary, and its results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.errors import OptionError

_MOST_VARIABLES = 3
_NAMES = "xyz"
_PLAIN = frozenset({bool, int, float, str, "bool", "int", "float", "str"})


class Callee:
    """A function of one to three tensors, with its other parameters fixed.

    Attributes:
        name: of the function.
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
        """Return the floating-point results of a function with the same parameters."""
        leaves, _ = _torch.tree_leaves(self.result(function, tensors))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]

    def result(self, function: Callable[..., Any], tensors: Sequence[Tensor]) -> Any:
        """Return the result of a function with the same parameters, without residuals."""
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
    """Return the signature of a call; `None` if there is none to see (a built-in, `*args`)."""
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
