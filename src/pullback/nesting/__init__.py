"""Derivatives of every order, right in every nesting of modes, where PyTorch's own rules are not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from torch import Tensor
from torch.overrides import TorchFunctionMode

from pullback import _torch
from pullback.nesting.table import FORMULAS, is_wrong

_F = TypeVar("_F", bound=Callable[..., Any])


class Replacing(TorchFunctionMode):
    """Computes by formulas what PyTorch differentiates wrongly.

    Args:
        order: of derivatives by reverse mode alone; `None` for all nestings up to the third order.
    """

    def __init__(self, order: int | None = None) -> None:
        super().__init__()
        self._order = order

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        number, formula = FORMULAS.get(func, (-1, func))
        if number < 0 or "out" in kwargs or not any(_is_differentiable(a) for a in (*args, *kwargs.values())):
            return func(*args, **kwargs)
        return formula(*args, **kwargs) if is_wrong(number, self._order) else func(*args, **kwargs)


class Noting(TorchFunctionMode):
    """Notes which operators of the table are called, by the numbers of their rows.

    Attributes:
        rows: the numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in FORMULAS:
            self.rows.add(FORMULAS[func][0])
        return func(*args, **(kwargs or {}))


def replaced_in_reverse(function: _F, rows: Collection[int], order: int) -> _F:
    """Return a function that calls operators of some rows as one whose reverse mode is right up to an order."""
    if not any(is_wrong(row, order) for row in rows):
        return function

    @functools.wraps(function)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        with Replacing(order):
            return function(*args, **kwargs)

    return replaced  # type: ignore[return-value]


def replacing() -> AbstractContextManager[Any]:
    """Return the context in which an op computes, by the levels of differentiation that run here.

    One more level may follow: eager reverse mode outside them. Where none runs there is nothing to replace: eager
    reverse mode alone is right up to the second order, but for a few operators.
    """
    order = _order()
    return nullcontext() if order == 0 else Replacing(None if order == _ANY else order)


_ANY = -1


@_torch.assume_constant_result  # Dynamo compiles anew under other levels
def _order() -> int:
    """Return the order of the derivatives that may be taken here, 0 for none and `_ANY` for every nesting.

    Under `vmap`, too: the gradient of `layer_norm` by its weight is a rule of its own there, which loses a part.
    """
    depth = _torch.differentiation_depth()
    return _ANY if depth and (_torch.in_dual_level() or _torch.in_vmap()) else depth and depth + 1


def _is_differentiable(argument: Any) -> bool:
    return isinstance(argument, Tensor) and (argument.is_floating_point() or argument.is_complex())


def nestable(function: _F) -> _F:
    """Return a function whose derivatives are right at every order up to three, in every nesting of modes.

    Some of PyTorch's operators lose a part of a derivative that is nested, without an error: `layer_norm` in
    `jacfwd(jacfwd(f))`, `cumprod` at a zero, `linalg.solve` before 2.15. `docs/pytorch.md` lists them. Where the
    function calls one of these, its formula in elementary operations is computed in its place. The formulas are chosen
    by what the installed PyTorch gets wrong, which takes a second, once in a process.

        hessian = jacfwd(jacfwd(pullback.nestable(model)))

    The values are those of the operators up to rounding; a formula may be slower. An operator that code other than
    Python calls, and one outside that list, stay as they are.

    Raises:
        TypeError: if it is not callable.
        DerivativeError: by the returned function, where an operator has neither a right rule nor a formula:
            `scatter_reduce` with products in forward mode.
    """
    if not callable(function):
        raise TypeError(f"nestable takes a function of tensors, not {type(function).__name__}")

    @functools.wraps(function)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        with Replacing():
            return function(*args, **kwargs)

    return replaced  # type: ignore[return-value]
