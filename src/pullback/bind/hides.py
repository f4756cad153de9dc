"""Dependences on the inputs that autograd cannot see in the context of a Function's forward."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, UntypedStorage

from pullback.dtypes import has_derivative


class Noting:
    """The `ctx` of a forward; records what the forward saves on it."""

    def __init__(self, ctx: Any) -> None:
        vars(self).update(__ctx=ctx, __saved=(), __forward=(), __stopped=(), __attributes={})

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["__ctx"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self)["__attributes"][name] = value
        setattr(vars(self)["__ctx"], name, value)

    def __delattr__(self, name: str) -> None:
        vars(self)["__attributes"].pop(name, None)
        delattr(vars(self)["__ctx"], name)

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors, as PyTorch does."""
        vars(self)["__saved"] = tensors
        vars(self)["__ctx"].save_for_backward(*tensors)

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for the jvp, as PyTorch does."""
        vars(self)["__forward"] = tensors
        vars(self)["__ctx"].save_for_forward(*tensors)

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Mark outputs, as PyTorch does."""
        vars(self)["__stopped"] = tensors
        vars(self)["__ctx"].mark_non_differentiable(*tensors)


def note(noting: Noting, inputs: Sequence[Any], output: Any) -> None:
    """Save the inputs of a forward that hides a dependence: the error at the second derivative needs an edge to them.

    They follow the forward's own saved tensors, and their number is stored.
    """
    noted = vars(noting)
    ctx, saved, forward = noted["__ctx"], noted["__saved"], noted["__forward"]
    kept = (*saved, *forward, *noted["__attributes"].values())
    ctx._hides = _hides(kept, inputs, output, noted["__stopped"])
    if ctx._hides:
        sources = [x for x in inputs if isinstance(x, Tensor) and has_derivative(x)]
        ctx._n_sources = len(sources)
        ctx.save_for_backward(*saved, *sources)
        ctx.save_for_forward(*(forward or saved), *sources)  # vmap wants as many as for backward


class Own:
    """A `ctx` in the state that its forward left, without the inputs that `note` added.

    Saved tensors are unpacked once, lazily: checkpoint, and hooks that free what they return, allow no second time.
    """

    def __init__(self, ctx: Any) -> None:
        vars(self).update(__ctx=ctx, __kept=None)

    def __getattr__(self, name: str) -> Any:
        if name in {"saved_tensors", "saved_variables"}:
            kept = kept_by(self)
            return kept[: len(kept) - _n_sources(self)]
        return getattr(vars(self)["__ctx"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["__ctx"], name, value)


def kept_by(own: Own) -> tuple[Tensor | None, ...]:
    """Return all that is saved, the inputs that `note` added included."""
    inside = vars(own)
    if inside["__kept"] is None:
        inside["__kept"] = inside["__ctx"].saved_tensors
    return inside["__kept"]  # type: ignore[no-any-return]


def sources_of(own: Own) -> list[Tensor]:
    """Return the inputs that `note` added to a forward's saved tensors: none if the forward hides nothing."""
    n = _n_sources(own)
    return [t for t in kept_by(own)[-n:] if t is not None] if n else []


def _n_sources(own: Own) -> int:
    ctx = vars(own)["__ctx"]
    return ctx._n_sources if getattr(ctx, "_hides", False) else 0


def _hides(kept: Sequence[Any], inputs: Sequence[Any], output: Any, stopped: Sequence[Tensor]) -> bool:
    """Whether numbers are kept that are neither inputs nor differentiable outputs.

    They may be in structures, objects and closures. Integers and masks do not count: they have no derivative.
    """
    real = [value for value in _leaves(kept) if _is_real(value)]
    if not real:
        return False
    outputs = [t for t in _leaves(output) if not any(t is s for s in stopped)]
    known = [*_leaves(inputs), *outputs]
    return any(not any(value is k for k in known) for value in real)


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the values inside a value, through objects a few levels deep; each object is opened once."""
    seen: set[int] = set()
    waiting = [(value, 0)]
    while waiting:
        value, depth = waiting.pop()
        within = _within(value) if depth < _DEEPEST else None
        if within is None:
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            waiting += [(item, depth + 1) for item in within]


_DEEPEST = 6
"""Levels that are opened: an object may lead to half of a program."""


def _within(value: Any) -> Iterable[Any] | None:
    """Return the values inside a structure, an object or a closure; `None` for others, and for modules.

    The parameters of a module are known to autograd; its buffers are not looked at.
    """
    match value:
        case Tensor() | np.ndarray() | UntypedStorage() | torch.nn.Module() | type() | ModuleType():
            return None
        case Mapping():
            return list(value.values())
        case list() | tuple() | set() | frozenset() | deque():
            return value
        case partial():
            return [value.func, *value.args, *value.keywords.values()]
        case FunctionType():
            return [*inspect.getclosurevars(value).nonlocals.values(), *(value.__defaults__ or ())]
        case MethodType() | BuiltinMethodType():
            return [value.__self__]
    held = list(vars(value).values()) if hasattr(value, "__dict__") else []
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return held + [getattr(value, name) for name in slots if hasattr(value, name)] or None


def _is_real(value: Any) -> bool:
    if isinstance(value, Tensor):
        return has_derivative(value)
    return isinstance(value, UntypedStorage) or (isinstance(value, np.ndarray) and value.dtype.kind in "fc")
