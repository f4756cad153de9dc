"""A node that takes rows, with its arguments by name: the argument of the rules for ops."""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor, fx

from pullback import _torch
from pullback.graph.rows import Mark, MixingError, Proof, Rows


class At:
    """A node with its arguments by name."""

    def __init__(self, proof: Proof, node: fx.Node) -> None:
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
        """Return an argument by name."""
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
        """Return where a value has rows, if it has."""
        mark = self.proof.marks[x] if isinstance(x, fx.Node) else None
        return mark if isinstance(mark, Rows) else None

    def of_first(self) -> Rows:
        """Return where the first argument has rows; no other may have some."""
        rows = self.rows(self.first)
        if rows is None or any(self.rows(a) for a in self.node.all_input_nodes if a is not self.first):
            raise self.mixed("is not known to keep rows of its other arguments apart")
        return rows

    def shape(self) -> tuple[int, ...]:
        """Return the shape of the node's first result."""
        value: Any = self.node.meta["val"]
        return tuple((value if isinstance(value, Tensor) else value[0]).shape)

    def keep(self, dim: int, block: int) -> Mark:
        """Compute the node in each chunk, with rows along a dimension."""
        return self.proof.keep(self.node, self.args, self.kwargs, Rows(dim, block))

    def sizes(self, dim: int, block: int) -> list[Any]:
        """Return the node's shape in a chunk, with rows along a dimension."""
        of_rows = self.proof.call(operator.mul, self.proof.count, block) if block > 1 else self.proof.count
        return [of_rows if i == dim else size for i, size in enumerate(self.shape())]

    def mixed(self, why: str) -> MixingError:
        """Return the error that the node mixes rows."""
        return MixingError(self.node, why)


def shape_of(x: Any) -> tuple[int, ...]:
    """Return the shape of a node's traced value."""
    return tuple(_torch.traced_value(x).shape)


def dims_of(given: Any, n: int) -> list[int]:
    """Return dimensions of a tensor that has n; none given means all."""
    if given is None or given == []:
        return list(range(n))
    return [d % n if n else 0 for d in ([given] if isinstance(given, int) else given)]
