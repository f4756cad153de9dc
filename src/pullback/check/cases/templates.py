"""Templates of the arguments of a guessed call: tensors by kind and shape, sequences of them, smooth callables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

Shape = tuple[int, ...]
Kind = Literal[
    "float", "positive", "binary", "index", "offsets", "mask", "definite", "negative definite", "triangular"
]  # fmt: skip

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
        return self.kind not in ("index", "offsets", "mask")


@dataclass(frozen=True, slots=True)
class SequenceOf:
    """Template of a tuple of floating tensors of one shape."""

    count: int


_FLOAT, _INDEX, _POSITIVE = TensorOf(), TensorOf("index"), TensorOf("positive")
_Family = tuple[tuple[str, TensorOf, Shape], ...]
_HIDDEN = r"x|_?inputs?|hidden\w*"
_GATES = r"(log_)?[gfw]|g_?k|gates?|decay|(log_)?alpha|a"
_BETA = r"beta"
_TARGETS = r"targets?|labels?"
_QUERIES = r"q|k|xq|xk|query|key|x"


def _linear_attention(gates: str, template: TensorOf, width: Shape) -> _Family:
    """Queries, keys and values of shape (batch, time, heads, width), as `fla` has them, with gates and a state."""
    rows = (2, 8, 2)
    return (
        (r"q|r|k|v|kk|query|key|value", _FLOAT, (*rows, 16)),
        (gates, template, (*rows, *width)),
        (_BETA, _POSITIVE, rows),
        (r"u|bonus", _FLOAT, (2, 16)),
        (r"h0|initial_state", _FLOAT, (2, 2, 16, 16)),
    )


NAMED_FAMILIES: Mapping[str, _Family] = MappingProxyType({
    "rope": ((_QUERIES, _FLOAT, (2, 4, 2, 6)), (r"cos|sin", _FLOAT, (4, 3))),
    "rope, heads first": ((_QUERIES, _FLOAT, (2, 2, 4, 6)), (r"cos|sin", _FLOAT, (4, 3))),
    "rope, whole rows": ((_QUERIES, _FLOAT, (2, 2, 4, 6)), (r"cos|sin", _FLOAT, (4, 6))),
    "rope, a batch of rows": ((_QUERIES, _FLOAT, (2, 2, 4, 6)), (r"cos|sin", _FLOAT, (1, 4, 6))),
    "linear attention": _linear_attention(_GATES, _FLOAT, ()),
    "linear attention, a gate per channel": _linear_attention(_GATES, _FLOAT, (16,)),
    "delta rule": _linear_attention(_BETA, _POSITIVE, ()),
    "attention": ((r"q|k|v|query|key|value", _FLOAT, (2, 2, 8, 16)),),
    "loss of a linear layer": (
        (_HIDDEN, _FLOAT, (5, 16)), (_TARGETS, _INDEX, (5,)), (r"\w*weights?|w", _FLOAT, (11, 16)),
        (r"bias|b", _FLOAT, (11,)),
    ),
    "loss": ((_HIDDEN + r"|logits|\w*pred\w*", _FLOAT, (5, 11)), (_TARGETS, _INDEX, (5,))),
    "embedding": (
        (r"\w*weights?|w|table|embed\w*", _FLOAT, (3, 8)), (r"idx|ind(ex|ices)|\w*ids|tokens?", _INDEX, (7,)),
    ),
    "mixture of experts": (
        (_HIDDEN + r"|tokens?", _FLOAT, (6, 8)), (r"idx|ind(ex|ices)|\w*(ids|experts?)", _INDEX, (6,)),
        (r"w\d?|\w*weights?", _FLOAT, (3, 8, 8)),
    ),
    "normalisation": (
        (_HIDDEN + r"|res\w*", _FLOAT, (4, 16)), (r"weights?|w|gamma|scale", _FLOAT, (16,)),
        (r"bias|b|beta|shift", _FLOAT, (16,)),
    ),
    "convolution of sequences": (
        (_HIDDEN, _FLOAT, (2, 9, 4)), (r"weights?|w|kernel|filter", _FLOAT, (4, 3)), (r"bias|b", _FLOAT, (4,)),
    ),
    "convolution of channels": (
        (_HIDDEN, _FLOAT, (2, 4, 9)), (r"weights?|w|kernel|filter", _FLOAT, (4, 3)), (r"bias|b", _FLOAT, (4,)),
    ),
})  # fmt: skip
"""Tensors of kernels by the names of their parameters: kernels raise no error from which a search could learn shapes.

A family applies where the first two of its kinds have a parameter, or two parameters have names of its only kind.
Several families may apply, and are tried in this order.
"""


def named_families(names: Sequence[str]) -> Iterator[dict[int, tuple[TensorOf, Shape]]]:
    """Yield, for each family that applies, the templates and shapes of its parameters by their positions."""
    for family in NAMED_FAMILIES.values():
        kinds = {i: kind for i, name in enumerate(names) if (kind := _kind_of(name.lower(), family)) is not None}
        if len(kinds) > 1 and {0, 1}.intersection(range(len(family))) <= {*kinds.values()}:
            yield {i: family[kind][1:] for i, kind in kinds.items()}


def _kind_of(name: str, family: _Family) -> int | None:
    return next((kind for kind, (pattern, *_) in enumerate(family) if re.fullmatch(pattern, name)), None)


def make_tensor(
    kind: Kind, shape: Shape, first: Shape | None, dtype: torch.dtype, generator: torch.Generator
) -> Tensor:
    """Make a tensor with values that float32 holds exactly, away from whole numbers and zero.

    Indices have one for each row of `first`, the shape of the first tensor; masks have its shape. Without it they
    have the shape asked for. Of three rows, indices name the last one twice. Offsets part these rows in two.
    """
    if kind == "offsets":
        rows = (shape if first is None else first)[:1]
        return torch.tensor([0, 1, max(*rows, 2)])
    if kind == "index":
        indices = torch.randint(0, 3, shape if first is None else first[:1], generator=generator)
        if indices.numel() > 1:  # programs that share a row, and one at the end of the memory, may show a fault
            indices.view(-1)[0] = indices.view(-1)[-1] = 2
        return indices
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
