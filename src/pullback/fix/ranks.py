"""Whether a backward that was derived for some number of dimensions is the same for others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.fix.model import Derived


def has_other_forms(derive: Callable[[Sequence[Any]], Derived], call: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether a forward takes calls with a dimension more or less for which the backward is another text.

    Args:
        derive: makes the backward for a call.
        call: the forward.
        args: of the example.
    """
    text = derive(args).body
    return any(_runs(call, other) and not _same(derive, other, text) for other in _others(args))


def _same(derive: Callable[[Sequence[Any]], Derived], args: Sequence[Any], text: tuple[str, ...]) -> bool:
    try:
        return derive(args).body == text
    except Exception:  # any error of tracing: nothing is known of the derivative there
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
    except Exception:  # any error of a forward on inputs that it does not take
        return False
    return True
