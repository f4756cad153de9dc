"""What the context of a Function keeps from the forward without autograd seeing how it depends on the inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from pullback.dtypes import has_derivative


class Noting:
    """The `ctx` of a forward, noting what is kept on it."""

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
    """Keep the inputs of a forward that hides something: an error at the second derivative needs a way to them.

    They are saved behind what the forward saved, and their number is kept.
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


def sources_of(ctx: Any) -> list[Tensor]:
    """Return the inputs that `note` added to what a forward saved: none if that hides nothing."""
    return list(ctx.saved_tensors[-ctx._n_sources :]) if getattr(ctx, "_hides", False) else []


class Own:
    """A `ctx` as its forward left it, without the inputs that `note` added."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._ctx, name)
        return value[: -self._ctx._n_sources] if name in {"saved_tensors", "saved_variables"} else value


def _hides(kept: Sequence[Any], inputs: Sequence[Any], output: Any, stopped: Sequence[Tensor]) -> bool:
    """Whether numbers are kept that are neither inputs nor differentiable outputs.

    They may be in lists and dicts too. Integers and masks do not count: they have no derivative.
    """
    outputs = [t for t in _leaves(output) if not any(t is s for s in stopped)]
    known = [*_leaves(inputs), *outputs]
    return any(_is_real(value) and not any(value is k for k in known) for value in _leaves(kept))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | set):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _is_real(value: Any) -> bool:
    if isinstance(value, Tensor):
        return has_derivative(value)
    return isinstance(value, np.ndarray) and value.dtype.kind in "fc"
