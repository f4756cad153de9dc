"""Proof that a formula is a function of sums over rows, and its split at these sums.

Rows are the first dimension of some of the inputs. Each value of a graph is shared by all rows, or has rows along one
of its dimensions (`Rows`), or is computed from sums over all rows. An op without a rule is refused, so a chunk of rows
has the result that these rows have within the whole:

    inputs ─before→ shared values ─per chunk→ sums over the rows of a chunk
    sums over all rows, shared values ─after→ the result

The proof is by induction along the graph. For a node marked `Rows(d, b)`, the graph of a chunk, run on the rows
r₀ ≤ r < r₁ of the inputs, gives the part b r₀ ≤ i < b r₁ of dimension d of the whole node. A rule shows that its op
carries this from operands to result. A sum over rows is the sum of its parts: Σᵣ y(r) = Σ_chunks Σ_{r in chunk} y(r).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.graph.trace import op_name


@dataclass(frozen=True, slots=True)
class Rows:
    """Mark of a value that has rows along a dimension: `block` consecutive indices a row."""

    dim: int = 0
    block: int = 1


class NoRows(Enum):
    """Mark of a value without rows."""

    SHARED = "the same for all rows"
    SUMMED = "made of sums over all rows"


Mark = Rows | NoRows
SHARED, SUMMED = NoRows.SHARED, NoRows.SUMMED


class MixingError(Exception):
    """A node that is not known to keep rows independent, and the reason."""

    def __init__(self, node: fx.Node, why: str) -> None:
        super().__init__(f"`{op_name(node)}` {why}")
        self.node = node


@dataclass(frozen=True, slots=True)
class RowSplit:
    """A formula, split at its sums over rows.

    Attributes:
        rows: number of rows.
        inputs: positions of the inputs that have rows.
        n_shared: number of values that all rows share.
        before: inputs to these shared values, then to computed values that have rows, in one list.
        per_chunk: number of rows, shared values and values with rows of a chunk, to the sums over the chunk.
        after: sums over all rows, and the shared values, to the result, as a list of one.
    """

    rows: int
    inputs: tuple[int, ...]
    n_shared: int
    before: fx.GraphModule
    per_chunk: fx.GraphModule
    after: fx.GraphModule


Rule = Callable[["RowProof", fx.Node], Mark]
"""Function from a node, some of whose inputs have rows, to its mark; it adds the node to the graph of a chunk."""

Finish = Callable[[fx.Graph, Sequence[fx.Node]], Any]
"""Function that adds to a graph the value of a node, given nodes with sums over all rows."""


class RowProof:
    """One pass over a graph under a hypothesis on the inputs with rows, which builds the graph of a chunk.

    Attributes:
        rows: number of rows.
        marks: marks of the nodes so far.
        per_chunk: the graph of a chunk.
        count: the node of that graph that is the chunk's number of rows.
    """

    def __init__(self, module: fx.GraphModule, sources: Sequence[fx.Node]) -> None:
        self._module, self._sources = module, tuple(sources)
        self.rows: int = _torch.traced_value(sources[0]).size(0)
        self.marks: dict[fx.Node, Mark] = {}
        self.per_chunk = fx.Graph()
        self.count = self.per_chunk.placeholder("rows")
        self._last = self.count
        self._made = {source: self._placeholder(source) for source in sources}
        self._shared: dict[fx.Node, None] = {}
        self._sums: list[fx.Node] = []
        self._finishes: dict[fx.Node, Finish] = {}

    def split(self, rule: Rule) -> RowSplit:
        """Mark every node, and split the graph.

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
        self.per_chunk.output(list(self._sums))
        return RowSplit(
            self.rows,
            tuple(i for i, x in enumerate(self._module.graph.find_nodes(op="placeholder")) if x in self._sources),
            len(self._shared),
            self._before(),
            fx.GraphModule(self._module, self.per_chunk),
            after,
        )

    def _without(self, node: fx.Node) -> NoRows | None:
        """Mark of a node none of whose inputs has rows; `None` for other nodes."""
        given = {a: self.marks[a] for a in node.all_input_nodes}
        summed = [a for a, mark in given.items() if mark is SUMMED]
        if not any(isinstance(mark, Rows) for mark in given.values()):
            return SUMMED if summed else SHARED
        if summed:
            raise MixingError(
                node, f"combines `{op_name(summed[0])}` over all rows with single rows, so rows are not independent"
            )
        return None

    # The interface for rules, which build the graph of a chunk.

    def chunked(self, node: fx.Node) -> fx.Node:
        """Node of a chunk's graph for a node; a new placeholder if it has none."""
        if node not in self._made:
            self._made[node] = self._placeholder(node)
            self._shared[node] = None
        return self._made[node]

    def keep(self, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any], mark: Rows) -> Mark:
        """Compute a node in each chunk; nodes among the arguments are of either graph."""
        made = self._made[node] = self.call(node.target, *args, **kwargs)
        made.meta = {"val": node.meta.get("val"), "rows": mark}
        return mark

    def alias(self, node: fx.Node, other: fx.Node, mark: Rows) -> Mark:
        """Let a node be another one in the graph of a chunk."""
        self._made[node] = other if other.graph is self.per_chunk else self.chunked(other)
        return mark

    def sum_up(self, node: fx.Node, sums: Sequence[fx.Node], finish: Finish) -> Mark:
        """Compute a node from sums over all rows: sums over the rows of chunks, added up."""
        first = len(self._sums)
        self._sums += sums
        self._finishes[node] = lambda graph, all_sums: finish(graph, all_sums[first : first + len(sums)])
        return SUMMED

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Add a call to the graph of a chunk; nodes among its arguments are of either graph."""
        given = fx.node.map_arg((args, kwargs), lambda a: a if a.graph is self.per_chunk else self.chunked(a))
        return self.per_chunk.call_function(target, *given)

    def _placeholder(self, node: fx.Node) -> fx.Node:
        with self.per_chunk.inserting_after(self._last):
            self._last = self.per_chunk.placeholder(node.name)
        return self._last

    # The part that is not computed by chunks.

    def _after(self, result: fx.Node) -> fx.GraphModule:
        graph = fx.Graph()
        sums = [graph.placeholder(f"over_all_rows_{i}") for i in range(len(self._sums))]
        wanted = [node for node in self._module.graph.nodes if self.marks.get(node) is SUMMED]
        for a in (a for node in wanted if node not in self._finishes for a in node.all_input_nodes):
            if self.marks[a] is SHARED and a not in self._shared:
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
            if node.op == "placeholder" or beside or self.marks.get(node) is SHARED:
                made[node] = graph.node_copy(node, made.__getitem__)
        others = [node for node in self._sources if node.op != "placeholder"]
        graph.output([made[node] for node in (*self._shared, *others)])
        graph.eliminate_dead_code()
        return fx.GraphModule(self._module, graph)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Dtype in which sums over chunks are accumulated: float32 for 16 bits."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


class RowOp:
    """A node with some inputs that have rows, and its arguments by name: the argument of the rules for ops."""

    def __init__(self, proof: RowProof, node: fx.Node) -> None:
        self.proof, self.node = proof, node
        self.args, self.kwargs = list(node.args), dict(node.kwargs)
        parameters = _torch.op_parameters(node.target) if _torch.is_dispatched_op(node.target) else []
        self.names = [p.name for p in parameters]
        self._defaults = {p.name: p.default for p in parameters}

    @property
    def first(self) -> fx.Node:
        """The first argument."""
        found: Any = self.node.args[0]
        return found  # type: ignore[no-any-return]

    def get(self, name: str) -> Any:
        """Argument by name."""
        i = self.names.index(name)
        if i < len(self.args):
            return self.args[i]
        return self.kwargs.get(name, self._defaults[name])

    def put(self, name: str, value: Any) -> None:
        """Replace an argument in the graph of a chunk."""
        i = self.names.index(name)
        if i < len(self.args):
            self.args[i] = value
        else:
            self.kwargs[name] = value

    def rows(self, x: Any) -> Rows | None:
        """Dimension and block of a value's rows; `None` if it has none."""
        mark = self.proof.marks[x] if isinstance(x, fx.Node) else None
        return mark if isinstance(mark, Rows) else None

    def of_first(self) -> Rows:
        """Rows of the first argument; no other may have any."""
        rows = self.rows(self.first)
        if rows is None or any(self.rows(a) for a in self.node.all_input_nodes if a is not self.first):
            raise self.mixed("is not known to keep rows of its other arguments apart")
        return rows

    def shape(self) -> tuple[int, ...]:
        """Shape of the node's first result."""
        value: Any = self.node.meta["val"]
        return tuple((value if isinstance(value, Tensor) else value[0]).shape)

    def keep(self, dim: int, block: int) -> Mark:
        """Compute the node in each chunk, with rows along a dimension."""
        return self.proof.keep(self.node, self.args, self.kwargs, Rows(dim, block))

    def sizes(self, dim: int, block: int) -> list[Any]:
        """Shape of the node in a chunk, with rows along a dimension."""
        of_rows = self.proof.call(operator.mul, self.proof.count, block) if block > 1 else self.proof.count
        return [of_rows if i == dim else size for i, size in enumerate(self.shape())]

    def mixed(self, why: str) -> MixingError:
        """Error that says how the node mixes rows."""
        return MixingError(self.node, why)


def shape_of(x: Any) -> tuple[int, ...]:
    """Shape of a node's traced value."""
    return tuple(_torch.traced_value(x).shape)


def dims_of(given: Any, n: int) -> list[int]:
    """Dimensions, as non-negative numbers, of a tensor that has n; none given means all."""
    if given is None or given == []:
        return list(range(n))
    return [d % n if n else 0 for d in ([given] if isinstance(given, int) else given)]
