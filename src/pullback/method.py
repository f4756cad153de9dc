"""An op as a method of a class."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pullback.op import Op

_LOOKING_INSIDE = ("explain", "saved", "graph")


class BoundOp:
    """An op with the object whose method it is."""

    def __init__(self, op: Op, instance: Any) -> None:
        self.__self__, self.__func__, self.__wrapped__ = instance, op, op._formula
        self.__name__, self.__qualname__, self.__doc__ = op.__name__, op.__qualname__, op.__doc__

    @property
    def __signature__(self) -> inspect.Signature:
        signature = self.__func__._signature
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the formula."""
        return self.__func__(self.__self__, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the op; introspection methods get the object as their first argument."""
        if name.startswith("__"):  # `__deepcopy__` of the op does not copy the method
            raise AttributeError(name)
        value = getattr(self.__func__, name)
        return functools.partial(value, self.__self__) if name in _LOOKING_INSIDE else value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BoundOp):
            return NotImplemented
        return self.__self__ is other.__self__ and self.__func__ is other.__func__

    def __hash__(self) -> int:
        return hash((id(self.__self__), id(self.__func__)))

    def __reduce__(self) -> Any:
        return getattr, (self.__self__, self.__name__)

    def __repr__(self) -> str:
        return f"<bound {self.__func__!r} of {type(self.__self__).__name__}>"


def plain_method(op: Op) -> Callable[..., Any]:
    """Return a plain function that calls an op, for those who look into methods: Dynamo, export, torch.fx."""

    def method(instance: Any, *args: Any, **kwargs: Any) -> Any:
        return op(instance, *args, **kwargs)

    functools.update_wrapper(method, op._formula)
    for name in ("vjp", "jvp", *_LOOKING_INSIDE):
        setattr(method, name, getattr(op, name))
    return method
