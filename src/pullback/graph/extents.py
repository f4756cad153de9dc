"""Numbers in a graph that its input sizes determine: their value in the traced call, and their formula."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

Kind = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Size, strides and dtype of a tensor."""

Numbers = Mapping[Any, Any]
"""Value of each extent's formula in one call, or the node that computes it."""


class Extent(int):
    """A number as it was in the call that was traced.

    Attributes:
        formula: the sympy expression in sizes of inputs that it is.
    """

    formula: Any

    def __new__(cls, number: int, formula: Any) -> Extent:
        """Make one of its number and its formula."""
        made = super().__new__(cls, number)
        made.formula = formula
        return made

    def __repr__(self) -> str:
        """Return Python code that differs from every other number's: `simplify` compares arguments by their code."""
        return f"({int(self)}, {str(self.formula)!r})[0]"

    def __getnewargs__(self) -> tuple[int, Any]:  # type: ignore[override]
        return int(self), self.formula


def at(value: Any, numbers: Numbers) -> Any:
    """Return a structure of tuples, lists and dicts with each extent replaced by its value in a call."""
    if type(value) is Extent:
        return numbers[value.formula]
    if isinstance(value, tuple):
        return tuple(at(v, numbers) for v in value)
    if isinstance(value, list):
        return [at(v, numbers) for v in value]
    if isinstance(value, dict):
        return {name: at(v, numbers) for name, v in value.items()}
    return value


def kind_of(tensor: Tensor) -> Kind:
    """Shape, strides and dtype of a tensor; the numbers are extents if it is a fake tensor that carries them."""
    shape, stride = getattr(tensor, _EXTENTS, None) or (tuple(tensor.shape), tuple(tensor.stride()))
    return shape, stride, tensor.dtype


def with_extents(fake: Tensor, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Attach to a fake tensor the extents that its shape and strides are."""
    setattr(fake, _EXTENTS, (tuple(shape), tuple(stride)))
    return fake


def has_extents(fake: Tensor) -> bool:
    """Whether extents are attached to a fake tensor."""
    return hasattr(fake, _EXTENTS)


_EXTENTS = "_pullback_extents"


def as_inputs(module: fx.GraphModule, first: Iterable[Any] = ()) -> tuple[fx.GraphModule, list[Any]]:
    """Return a graph that takes its extents as inputs, before the others, and their formulas.

    The values of the formulas `first` come before all of them.
    """
    graph = fx.Graph()
    found = dict.fromkeys((*first, *formulas_in([(node.args, node.kwargs) for node in module.graph.nodes])))
    given = {formula: graph.placeholder(f"size_{i}") for i, formula in enumerate(found)}
    made: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        args, kwargs = at(fx.node.map_arg((node.args, node.kwargs), made.__getitem__), given)
        made[node] = graph.create_node(node.op, node.target, args, kwargs, node.name)
    return fx.GraphModule(module, graph), list(given)


def formulas_in(value: Any) -> list[Any]:
    """Return the formulas of the extents in tuples, lists and dicts."""
    found: dict[Any, None] = {}
    stack = [value]
    while stack:
        value = stack.pop()
        if type(value) is Extent:
            found[value.formula] = None
        elif isinstance(value, tuple | list | dict):
            stack += value.values() if isinstance(value, dict) else value
    return list(found)
