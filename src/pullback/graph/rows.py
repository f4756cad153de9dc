"""The proof that a formula is a function of sums over rows, and its split at these sums.

Rows are the first dimension of some of the inputs. Each value of a graph is the same for all rows, or has them along
one of its dimensions (`Rows`), or is computed from sums over all of them. An op without a rule is refused, so a chunk
of rows gives the same result as these rows do within the whole:

    inputs ─before→ shared values ─each→ sums over the rows of a chunk
    sums over all rows, shared values ─after→ the result
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import fx

from pullback import _torch
from pullback.graph.lines import op_name


@dataclass(frozen=True, slots=True)
class Rows:
    """A value that has rows along a dimension: `block` consecutive places for each."""

    dim: int = 0
    block: int = 1


class Without(Enum):
    """A value without rows."""

    SAME = "the same for all rows"
    SUMMED = "made of sums over all rows"


Mark = Rows | Without
SAME, SUMMED = Without.SAME, Without.SUMMED


class MixingError(Exception):
    """A node that is not known to keep rows apart, and why."""

    def __init__(self, node: fx.Node, why: str) -> None:
        super().__init__(f"`{op_name(node)}` {why}")
        self.node = node


@dataclass(frozen=True, slots=True)
class Split:
    """A formula, split at its sums over rows.

    Attributes:
        rows: their number.
        inputs: positions of the inputs that have rows.
        n_shared: how many values are the same for all rows.
        before: inputs to these shared values, then to computed values that have rows, in one list.
        each: number of rows, shared values and values with rows of a chunk, to the sums over the chunk.
        after: sums over all rows, and the shared values, to the result, as a list of one.
    """

    rows: int
    inputs: tuple[int, ...]
    n_shared: int
    before: fx.GraphModule
    each: fx.GraphModule
    after: fx.GraphModule


Rule = Callable[["Proof", fx.Node], Mark]
"""Returns the mark of a node with some inputs that have rows, and adds it to the graph of a chunk; or raises."""

Finish = Callable[[fx.Graph, Sequence[fx.Node]], Any]
"""Adds to a graph, which has sums over all rows, a function of them."""


class Proof:
    """One pass over a graph, under a hypothesis of the inputs with rows; it builds the graph of one chunk on the way.

    Attributes:
        rows: their number.
        marks: of the nodes so far.
        each: the graph of a chunk.
        count: the node of that graph that is the chunk's number of rows.
    """

    def __init__(self, module: fx.GraphModule, sources: Sequence[fx.Node]) -> None:
        self._module, self._sources = module, tuple(sources)
        self.rows: int = _torch.traced_value(sources[0]).size(0)
        self.marks: dict[fx.Node, Mark] = {}
        self.each = fx.Graph()
        self.count = self.each.placeholder("rows")
        self._last = self.count
        self._made = {source: self._placeholder(source) for source in sources}
        self._shared: dict[fx.Node, None] = {}
        self._sums: list[fx.Node] = []
        self._finishes: dict[fx.Node, Finish] = {}

    def split(self, rule: Rule) -> Split:
        """Go through the graph and divide it.

        Raises:
            MixingError: if the result is not a function of sums over rows, as far as is known.
        """
        for node in self._module.graph.nodes:
            if node.op == "output":
                break
            self.marks[node] = Rows() if node in self._sources else self._without(node) or rule(self, node)
        (result,) = node.all_input_nodes or (node,)
        if self.marks.get(result) is not SUMMED:
            raise MixingError(result, "is the result, and not made of sums over rows")
        after = self._after(result)
        self.each.output(list(self._sums))
        return Split(
            self.rows,
            tuple(i for i, x in enumerate(self._module.graph.find_nodes(op="placeholder")) if x in self._sources),
            len(self._shared),
            self._before(),
            fx.GraphModule(self._module, self.each),
            after,
        )

    def _without(self, node: fx.Node) -> Without | None:
        """Return the mark of a node that takes nothing that has rows."""
        given = {a: self.marks[a] for a in node.all_input_nodes}
        summed = [a for a, mark in given.items() if mark is SUMMED]
        if not any(isinstance(mark, Rows) for mark in given.values()):
            return SUMMED if summed else SAME
        if summed:
            raise MixingError(node, f"takes `{op_name(summed[0])}`, which is over all rows, back to single rows")
        return None

    # The interface for rules, which build the graph of a chunk.

    def chunked(self, node: fx.Node) -> fx.Node:
        """Return the node in the graph of a chunk for a node, a placeholder if it has none yet."""
        if node not in self._made:
            self._made[node] = self._placeholder(node)
            self._shared[node] = None
        return self._made[node]

    def keep(self, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any], mark: Rows) -> Mark:
        """Compute a node in each chunk; nodes among the arguments are of either graph."""
        made = self._made[node] = self.call(node.target, *args, **kwargs)
        made.meta = {"val": node.meta.get("val"), "rows": mark}
        return mark

    def same_as(self, node: fx.Node, other: fx.Node, mark: Rows) -> Mark:
        """Take a node for another in each chunk."""
        self._made[node] = other if other.graph is self.each else self.chunked(other)
        return mark

    def sum_up(self, node: fx.Node, sums: Sequence[fx.Node], finish: Finish) -> Mark:
        """Compute a node of sums over all rows, which are those over the rows of chunks, added up."""
        first = len(self._sums)
        self._sums += sums
        self._finishes[node] = lambda graph, all_sums: finish(graph, all_sums[first : first + len(sums)])
        return SUMMED

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Add a call to the graph of a chunk; nodes among its arguments are of either graph."""
        given = fx.node.map_arg((args, kwargs), lambda a: a if a.graph is self.each else self.chunked(a))
        return self.each.call_function(target, *given)

    def _placeholder(self, node: fx.Node) -> fx.Node:
        with self.each.inserting_after(self._last):
            self._last = self.each.placeholder(node.name)
        return self._last

    # The part that is not computed by chunks.

    def _after(self, result: fx.Node) -> fx.GraphModule:
        graph = fx.Graph()
        sums = [graph.placeholder(f"over_all_rows_{i}") for i in range(len(self._sums))]
        wanted = [node for node in self._module.graph.nodes if self.marks.get(node) is SUMMED]
        for a in (a for node in wanted if node not in self._finishes for a in node.all_input_nodes):
            if self.marks[a] is SAME and a not in self._shared:
                self.chunked(a)
        made: dict[fx.Node, Any] = {node: graph.placeholder(node.name) for node in self._shared}
        for node in wanted:
            if node in self._finishes:
                made[node] = self._finishes[node](graph, sums)
            elif op_name(node) == "getitem" and isinstance(made[node.args[0]], tuple):
                made[node] = made[node.args[0]][node.args[1]]
            else:
                made[node] = graph.node_copy(node, made.__getitem__)
        graph.output([made[result]])
        graph.eliminate_dead_code()
        return fx.GraphModule(self._module, graph)

    def _before(self) -> fx.GraphModule:
        graph = fx.Graph()
        made: dict[fx.Node, fx.Node] = {}
        for node in self._module.graph.nodes:
            beside = node in self._sources and node.op != "placeholder"
            if node.op == "placeholder" or beside or self.marks.get(node) is SAME:
                made[node] = graph.node_copy(node, made.__getitem__)
        others = [node for node in self._sources if node.op != "placeholder"]
        graph.output([made[node] for node in (*self._shared, *others)])
        graph.eliminate_dead_code()
        return fx.GraphModule(self._module, graph)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which sums of a dtype are kept."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
