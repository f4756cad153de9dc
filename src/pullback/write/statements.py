"""A graph as statements: a value used once is inlined, a value used twice gets a name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback.errors import FormulaError
from pullback.write.expressions import ATOM, Context, Text, number, op_name, sequence
from pullback.write.names import Names
from pullback.write.special import is_constant
from pullback.write.spelling import spelled

_WIDTH = 72
"""How long an expression may become before a part of it gets a name."""
_LAST = 60
"""The same for a returned expression, which has more text around it."""
_SHORT = 12
"""An expression up to this length never gets a name."""
_SIZES = ("sym_size", "sym_numel")


class Statements:
    """Writes the statements that compute nodes from named ones.

    Args:
        known: names of the available nodes.
        names: returns new names.
        dtype: of the example.
        like: the name of an available tensor.
        shapes: expressions for the shapes of inputs whose values are not available.

    Attributes:
        known: names of the nodes available so far.
    """

    def __init__(
        self,
        known: dict[fx.Node, str],
        names: Names,
        dtype: torch.dtype,
        like: str,
        shapes: dict[fx.Node, str] | None = None,
    ) -> None:
        self._lines: list[str] = []
        self.known = dict(known)
        self._names = names
        self._texts: dict[fx.Node, Text] = {}
        self._shapes = shapes or {}
        self._context = Context(dtype, like, self.show)

    def compute(self, wanted: Iterable[fx.Node], uses: dict[fx.Node, int], named: Iterable[fx.Node] = ()) -> None:
        """Write the missing statements for some nodes; those in `named` get names."""
        with_names, finals = set(named), set(wanted)
        for node in needed(wanted, {*self.known, *self._texts, *self._shapes}):
            text = self._fitting(node, finals)
            once = uses.get(node, 0) <= 1 or is_size(node) or text.text.isidentifier()
            if is_constant(node) or (node not in with_names and once and (len(text.text) <= _WIDTH or node in finals)):
                self._texts[node] = text
            else:
                self._name(node, text)

    def _fitting(self, node: fx.Node, finals: Collection[fx.Node]) -> Text:
        """Return a node as text, with names for its longest operands where it is too long."""
        while True:
            text = self._spelled(node)
            operands = [
                a
                for a in node.all_input_nodes
                if a in self._texts and len(self._texts[a].text) > _SHORT and not is_constant(a)
            ]
            if len(text.text) <= (_WIDTH if node not in finals else _LAST) or not operands:
                return text
            longest = max(operands, key=lambda a: len(self._texts[a].text))
            self._name(longest, self._texts.pop(longest))

    def take(self) -> list[str]:
        """Return the lines since the last time."""
        lines, self._lines = self._lines, []
        return lines

    def _name(self, node: fx.Node, text: Text) -> None:
        name = self._names.of(node, self.known)
        self._lines.append(f"{name} = {text.text}")
        self.known[node] = name

    def show(self, value: Any) -> Text:
        """Return an argument of an op as text."""
        if isinstance(value, fx.Node):
            if value in self.known:
                return Text(self.known[value])
            return self._texts[value]
        if isinstance(value, list | tuple | torch.Size):
            whole = self._whole_shape(value)
            return whole or sequence(value, self._context)
        if isinstance(value, bool | str) or value is None:
            return Text(repr(value))
        if isinstance(value, int | float | complex):
            return number(value)
        if isinstance(value, torch.dtype):
            return Text(self._context.dtype_of(value))
        if isinstance(value, torch.memory_format | torch.layout):
            return Text(str(value))
        raise FormulaError(f"it uses {value!r}, which has no form to read.")

    def _spelled(self, node: fx.Node) -> Text:
        if node.op == "get_attr":
            return _constant(node)
        if op_name(node) == "sym_size" and node.args[0] in self._shapes:
            return Text(f"{self._shapes[node.args[0]]}[{node.args[1]}]")  # type: ignore[index]
        if op_name(node) == "sym_numel" and node.args[0] in self._shapes:
            return Text(f"{self._shapes[node.args[0]]}.numel()")  # type: ignore[index]
        return spelled(node, self._context)

    def _whole_shape(self, sizes: Sequence[Any]) -> Text | None:
        """Return the shape of an input, if these are its sizes."""
        if not sizes or not isinstance(sizes[0], fx.Node) or op_name(sizes[0]) != "sym_size":
            return None
        of: Any = sizes[0].args[0]
        if len(sizes) != of.meta["val"].dim():
            return None
        for i, size in enumerate(sizes):
            if not isinstance(size, fx.Node) or op_name(size) != "sym_size" or size.args != (of, i):
                return None
        return Text(self._shapes[of]) if of in self._shapes else Text(f"{self.show(of).at(ATOM)}.shape")


def needed(wanted: Iterable[fx.Node], known: Iterable[fx.Node]) -> list[fx.Node]:
    """Return the nodes that have to be computed, in the order of the graph."""
    there, found, stack = set(known), set(), list(wanted)
    while stack:
        node = stack.pop()
        if node in there or node in found:
            continue
        found.add(node)
        stack += node.all_input_nodes
    graph = next(iter(found)).graph if found else None
    return [node for node in graph.nodes if node in found] if graph is not None else []


def is_size(node: fx.Node) -> bool:
    """Whether the value of a node is a size of a tensor."""
    return op_name(node) in _SIZES


def uses_of(wanted: Sequence[fx.Node], known: Iterable[fx.Node]) -> dict[fx.Node, int]:
    """Return how often the value of each node is used to compute some."""
    counts: dict[fx.Node, int] = {}

    def count(a: Any) -> fx.Node:
        counts[a] = counts.get(a, 0) + 1
        return a  # type: ignore[no-any-return]

    for node in needed(wanted, known):
        fx.node.map_arg((node.args, node.kwargs), count)
    for node in wanted:
        counts[node] = counts.get(node, 0) + 1
    return counts


def _constant(node: fx.Node) -> Text:
    value: Any = getattr(node.graph.owning_module, str(node.target))
    if isinstance(value, Tensor) and value.dim() == 0:
        return number(value.item())
    raise FormulaError("it uses a tensor that is not an argument: pass it as one.")
