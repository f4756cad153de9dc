"""Templates of the arguments of a guessed call: tensors by kind and shape, sequences of them, smooth callables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Shape = tuple[int, ...]
Kind = Literal["float", "positive", "binary", "index", "mask", "definite", "negative definite", "triangular"]

SQUARE: tuple[Kind, ...] = ("definite", "triangular", "negative definite")
"""Kinds of square matrices that a forward may ask for."""

FAMILIES: tuple[tuple[Shape, ...], ...] = (
    ((3, 5),),
    ((3, 5), (4, 5), (4,)),
    ((3, 5), (5, 4), (4,)),
    ((5,),),
    ((3, 5), (5,)),
    ((2, 3, 5),),
    ((4, 4),),
    ((2, 3, 6, 6), (4, 3, 3, 3), (4,)),
    ((2, 3, 6, 6), (3,)),
    ((2, 4, 3), (2, 3, 5)),
    ((2, 3, 8), (4, 3, 3), (4,)),
    ((),),
    ((3, 5), ()),
    ((2, 5, 3),),
    ((3, 4), (3, 3)),
    ((3, 7),),
    ((3, 7), (3, 3)),
    ((3, 7), (3, 6)),
    ((2, 2, 8, 16),),
    ((4, 16), (16,)),
)
"""Shapes that go together, by position of a tensor among the tensors; the last serves all that follow.

The last ones are quaternions and poses, with points and twists, and those of kernels that need powers of two.
"""

SHAPES: tuple[Shape, ...] = (
    (3, 5), (5,), (3,), (5, 5), (), (5, 3), (4, 5), (4,), (2, 3, 5), (2, 5, 3), (3, 3), (1,), (2, 3, 6, 6),
    (4, 3, 3, 3), (4, 3, 3), (2, 3, 8), (1, 1), (2, 3), (2, 3, 3), (3, 5, 2), (3, 2), (2,),
)  # fmt: skip
"""Shapes that one tensor alone may be given."""


@dataclass(frozen=True, slots=True)
class TensorOf:
    """Template of a tensor, which is made once its shape is chosen."""

    kind: Kind = "float"

    @property
    def leads(self) -> bool:
        """Whether it takes up a place in a family of shapes; indices and masks follow the first tensor."""
        return self.kind not in ("index", "mask")


@dataclass(frozen=True, slots=True)
class SequenceOf:
    """Template of a tuple of floating tensors of one shape."""

    count: int


def make_tensor(
    kind: Kind, shape: Shape, first: Shape | None, dtype: torch.dtype, generator: torch.Generator
) -> Tensor:
    """Make a tensor with values that float32 holds exactly, away from whole numbers and zero.

    Indices have one for each row of `first`, the shape of the first tensor; masks have its shape. Without it they
    have the shape asked for.
    """
    if kind == "index":
        return torch.randint(0, 3, shape if first is None else first[:1], generator=generator)
    if kind == "mask":
        mask = torch.rand(shape if first is None else first, generator=generator) < 0.6
        if mask.numel() > 1:  # neither all nor none: a fault may not show there
            mask.view(-1)[0], mask.view(-1)[-1] = True, False
        return mask
    if kind == "binary":
        return (torch.rand(shape, generator=generator) < 0.5).to(dtype)
    t = (torch.randn(_squared(shape) if kind in SQUARE else shape, generator=generator) * 256).round() / 256 + 1 / 1024
    match kind:
        case "positive":
            t = t.abs() + 0.1
        case "definite":
            t = t @ t.mT + torch.eye(t.shape[-1])
        case "negative definite":
            t = -(t @ t.mT) - torch.eye(t.shape[-1])
        case "triangular":
            t = t.tril(-1) + torch.diag_embed(t.diagonal(0, -2, -1).abs() + 0.5)
    return t.to(dtype)


def _squared(shape: Shape) -> Shape:
    return (*shape[:-2], *(shape[-1:] or (3,)) * 2)


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
