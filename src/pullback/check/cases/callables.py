"""Substitutes for a callable argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class SmoothCallable:
    """A callable with its expression for a reproduction.

    Args:
        function: the implementation.
        text: an equivalent expression.
    """

    def __init__(self, function: Callable[..., Tensor], text: str) -> None:
        self._function = function
        self._text = text

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Call the function."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return self._text


def _sum_of_tanh(*args: Any, **kwargs: Any) -> Tensor:
    tensors = [a for a in args if isinstance(a, Tensor) and a.is_floating_point()]
    total = tensors[0].tanh() if tensors else torch.ones(())
    for t in tensors[1:]:
        total = total + t.tanh()
    return total


def _distance(a: Tensor, b: Tensor) -> Tensor:
    return torch.cdist(a, b)


def _squared_distance(a: Tensor, b: Tensor) -> Tensor:
    return torch.cdist(a, b) ** 2


SMOOTH = SmoothCallable(
    _sum_of_tanh,
    "lambda *args, **kwargs: sum(a.tanh() for a in args if torch.is_tensor(a) and a.is_floating_point())",
)
"""Takes any arguments: the sum of tanh of its floating tensors. No identity, nowhere flat, its sign is its input's."""
DISTANCES = (
    SmoothCallable(_distance, "lambda a, b: torch.cdist(a, b)"),
    SmoothCallable(_squared_distance, "lambda a, b: torch.cdist(a, b) ** 2"),
)
"""Candidates for a callable of two matrices whose derivative may be built into the function."""
