"""Numbers in a graph that the sizes of its inputs determine: what they were in the call that was traced, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

Kind = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Size, strides and dtype of a tensor."""

Numbers = Mapping[Any, int]
"""What each formula of some extents comes to in one call."""


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
        """Return Python that no other number is written as: `simplify` tells arguments apart by it."""
        return f"({int(self)}, {str(self.formula)!r})[0]"

    def __getnewargs__(self) -> tuple[int, Any]:  # type: ignore[override]
        return int(self), self.formula


def at(value: Any, numbers: Numbers) -> Any:
    """Return tuples, lists, dicts and what is in them with each extent as what it is in a call."""
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
    """Return what a tensor is like; with extents, if it is one without values that has them."""
    shape, stride = getattr(tensor, "extents", None) or (tuple(tensor.shape), tuple(tensor.stride()))
    return shape, stride, tensor.dtype


def module_at(module: fx.GraphModule, numbers: Numbers) -> fx.GraphModule:
    """Return a graph with each extent among its arguments as what it is in a call; itself if there are none."""
    if not any(has_extents((node.args, node.kwargs)) for node in module.graph.nodes):
        return module
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, made))
    for node in graph.nodes:
        node.args, node.kwargs = at(tuple(node.args), numbers), at(dict(node.kwargs), numbers)
    return fx.GraphModule(module, graph)


def has_extents(value: Any) -> bool:
    """Whether there is an extent in some arguments."""
    if isinstance(value, dict):
        value = tuple(value.values())
    return any(map(has_extents, value)) if isinstance(value, tuple | list) else type(value) is Extent
