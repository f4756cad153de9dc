"""Whether a backward that was derived for some number of dimensions is the same for others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.dtypes import has_derivative
from pullback.fix.model import Derived

_CLOSE = 1e-4
"""In single precision; a backward for another number of dimensions is off by far more, or raises."""


def other_forms(
    derive: Callable[[Sequence[Any]], Derived], call: Callable[..., Any], args: Sequence[Any]
) -> list[list[Any]]:
    """Return calls with a dimension more or less that a forward takes, and for which the backward is another text.

    Args:
        derive: makes the backward for a call.
        call: the forward.
        args: of the example.
    """
    text = derive(args).body
    return [other for other in _others(args) if _runs(call, other) and not _same(derive, other, text)]


def agree(function: Callable[..., Any], formula: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether the gradients of a function are those of a formula, at a call."""
    try:
        pairs = list(zip(_gradients(function, args), _gradients(formula, args), strict=True))
    except Exception:  # whatever a backward raises where it does not hold
        return False
    return all(torch.allclose(own, right, rtol=_CLOSE, atol=_CLOSE) for own, right in pairs)


def _gradients(function: Callable[..., Any], args: Sequence[Any]) -> list[Tensor]:
    given = [a.detach().requires_grad_(has_derivative(a)) if isinstance(a, Tensor) else a for a in args]
    result = function(*given)
    outs = [out for out in (result if isinstance(result, tuple) else (result,)) if out.requires_grad]
    leaves = [a for a in given if isinstance(a, Tensor) and a.requires_grad]
    weights = [torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).reshape(out.shape) for out in outs]
    return list(torch.autograd.grad(outs, leaves, weights, materialize_grads=True))


def _same(derive: Callable[[Sequence[Any]], Derived], args: Sequence[Any], text: tuple[str, ...]) -> bool:
    try:
        return derive(args).body == text
    except Exception:  # whatever a formula raises when it is traced: nothing is known of its derivative there
        return False


def _others(args: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the arguments with one tensor, or all of them, of a dimension more and of one less."""
    places = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
    for chosen in [places, *([i] for i in places if len(places) > 1)]:
        yield [torch.stack([a, a]) if i in chosen else a for i, a in enumerate(args)]
        if all(args[i].dim() > (chosen != places) for i in chosen):  # no one means a vector to be a number
            yield [a[0] if i in chosen else a for i, a in enumerate(args)]


def _runs(call: Callable[..., Any], args: Sequence[Any]) -> bool:
    try:
        with torch.no_grad():
            call(*args)
    except Exception:  # whatever a forward raises on what it does not take
        return False
    return True
