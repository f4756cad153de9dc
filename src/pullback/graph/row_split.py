"""Which inputs of a formula have rows: found by trying, for a size proves nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from torch import Tensor, fx

from pullback import _torch
from pullback.graph.row_rules import mark_of
from pullback.graph.rows import MixingError, Proof, Split


def split_by_rows(module: fx.GraphModule) -> Split | str:
    """Return a graph with one result, split, or the reason why it is not known to be a function of sums over rows.

    The rows are the first dimension of the first input that has one. As many other inputs of that length as possible
    have rows too: a weight with as many rows is tried as data first, and the proof rejects that.
    """
    furthest, why = -1, "its first tensor has less than two rows"
    order = {node: i for i, node in enumerate(module.graph.nodes)}
    for sources in _hypotheses(module.graph):
        try:
            return Proof(module, sources).split(mark_of)
        except MixingError as error:
            if order[error.node] > furthest:
                furthest, why = order[error.node], str(error)
    return why


_MOST_SOURCES = 10


def _hypotheses(graph: fx.Graph) -> Iterator[tuple[fx.Node, ...]]:
    """Yield candidate sets of inputs with rows: the first, with subsets of the others of its length, largest first."""
    first, *others = [node for node in graph.nodes if _may_have_rows(node)]
    rows = _torch.traced_value(first).size(0)
    alike = [node for node in others if _torch.traced_value(node).size(0) == rows][:_MOST_SOURCES]
    for n in range(len(alike), -1, -1):
        yield from ((first, *some) for some in itertools.combinations(alike, n))


def _may_have_rows(node: fx.Node) -> bool:
    if node.op != "placeholder" and (node.op != "call_function" or node.all_input_nodes):
        return False
    value = _torch.traced_value(node)
    return isinstance(value, Tensor) and value.dim() > 0
