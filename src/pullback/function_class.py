"""`pullback.AutogradFunction`: a base class in place of `torch.autograd.Function`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from pullback import _torch
from pullback.bind.honoured import honoured
from pullback.errors import FormulaError
from pullback.graph.reads import WITH_CONTEXT
from pullback.op import Op

_METHODS = (
    "forward",
    "setup_context",
    "backward",
    "vjp",
    "jvp",
    "vmap",
    "generate_vmap_rule",
    "clear_saved_tensors_on_access",
)


class _Watched(type):
    """A class whose calls follow when a method is given to it later."""

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in _METHODS:
            super().__setattr__("_carried", staticmethod(_carrier(cls)))


class AutogradFunction(metaclass=_Watched):
    """Change the base of a `torch.autograd.Function` to this, and `apply` works in every context or raises.

    With `forward` alone, old style (`forward(ctx, …)`) or new, the derivative is derived from it, for every order
    and mode. Whatever else the class defines (`backward`, `jvp`, `vmap`, `setup_context`) is used, and guarded: a
    transform that would differentiate the forward instead meets a `DerivativeError`, and a backward that
    leaves PyTorch (NumPy, `once_differentiable`) raises when it is differentiated, in every way of asking. A number
    that the forward takes from a tensor and leaves on `ctx`, say by `.item()`, is a constant to second derivatives.
    """

    _is_pullback_function = True

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Call the function.

        Raises:
            FormulaError: if the derivative is derived and `forward` has no derivative.
            DerivativeError: where a transform would lose the derivative that the class defines.
        """
        return cls._carried(*args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        carrier = _carrier(cls)
        if hasattr(cls, "forward"):  # how messages name it, and where pickle finds it again
            carrier.__name__, carrier.__qualname__ = cls.__name__, f"{cls.__qualname__}._carried"
        cls._carried = staticmethod(carrier)  # type: ignore[method-assign]

    @classmethod
    def _carried(cls, *args: Any, **kwargs: Any) -> Any:
        raise FormulaError(f"{cls.__name__} has no `forward`: derive from pullback.AutogradFunction, and define one.")


def _carrier(cls: Any) -> Callable[..., Any]:
    """Return the function or op that runs the calls of a class."""
    if not hasattr(cls, "forward"):
        return cls._carried  # type: ignore[no-any-return]
    if hasattr(cls, "backward") or hasattr(cls, "vjp") or hasattr(cls, "jvp"):
        given = {name: getattr(cls, name) for name in _METHODS if hasattr(cls, name)}
        return honoured(cls, given, _signature(cls))
    return Op(_formula(cls), name=cls.__qualname__)


def _old_style(cls: Any) -> bool:
    """Whether `forward` takes a context first: `setup_context` says no; with `forward` alone, the name says yes."""
    if hasattr(cls, "setup_context"):
        return False
    first = next(iter(inspect.signature(cls.forward).parameters), "")
    return hasattr(cls, "backward") or first in {"ctx", "_ctx", "context", "self"}


def _formula(cls: Any) -> Callable[..., Any]:
    """Return `forward` as a function of the inputs alone."""
    forward: Callable[..., Any] = cls.forward
    if not _old_style(cls):
        return forward

    @functools.wraps(forward)
    def formula(*args: Any, **kwargs: Any) -> Any:
        context = _Context(args)
        return context.stopped(forward(context, *args, **kwargs))

    formula.__signature__ = _signature(cls)  # type: ignore[attr-defined]
    setattr(formula, WITH_CONTEXT, forward)
    return formula


def _signature(cls: Any) -> inspect.Signature:
    """Return the parameters of `apply`: those of `forward` without `ctx`."""
    return inspect.Signature(list(inspect.signature(cls.forward).parameters.values())[_old_style(cls) :])


class _Context:
    """The `ctx` of a forward whose backward is derived: nothing need be saved."""

    def __init__(self, args: Sequence[Any]) -> None:
        self.needs_input_grad = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
        self._stopped: tuple[Tensor, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        pass

    save_for_forward = save_for_backward

    def set_materialize_grads(self, value: bool) -> None:
        pass

    def mark_dirty(self, *tensors: Tensor) -> None:
        raise FormulaError("mark_dirty: a forward whose backward is derived does not write to its inputs.")

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        self._stopped = tensors

    def stopped(self, result: Any) -> Any:
        """Return a result with the gradient of outputs marked non-differentiable stopped."""
        leaves, spec = _torch.tree_leaves(result)
        cut = [leaf.detach() if any(leaf is t for t in self._stopped) else leaf for leaf in leaves]
        return _torch.tree_unflatten(cut, spec)
