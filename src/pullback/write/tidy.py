"""The arithmetic of a derivative in a better form, if that is shorter and as accurate."""

from __future__ import annotations

from torch import fx

from pullback.graph.joint import simplify
from pullback.write.accuracy import is_as_good
from pullback.write.algebra import Algebra
from pullback.write.graphs import Graph, find_ends, with_meta


def tidied(graph: Graph) -> None:
    """Put the arithmetic of the derivative in a better form, if it is shorter and as accurate."""
    trial = duplicate(graph)
    algebra = Algebra(trial.module.graph, trial.outputs, trial.given)
    trial.results = algebra.rewrite(trial.results)
    _finish(trial)
    if length(trial) <= length(graph) and is_as_good(trial.module, graph.module):
        graph.module, graph.inputs, graph.given = trial.module, trial.inputs, trial.given
        graph.outputs, graph.results = trial.outputs, trial.results


def duplicate(graph: Graph) -> Graph:
    """Return a copy of a graph with new nodes."""
    new = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for node in graph.module.graph.nodes:
        made[node] = with_meta(new.node_copy(node, made.__getitem__), node)
    copy = Graph(
        fx.GraphModule(graph.module, new), [made[x] for x in graph.inputs], [made[x] for x in graph.given], [], []
    )
    find_ends(copy)
    return copy


def _finish(graph: Graph) -> None:
    """Make the results the graph's output, and drop unused nodes."""
    graph.module.graph.output_node().args = ([list(graph.outputs), list(graph.results)],)
    simplify(graph.module.graph)
    graph.module.graph.lint()
    graph.module.recompile()
    find_ends(graph)


def length(graph: Graph) -> int:
    """Return the number of ops of a derivative, given the value."""
    there = {*graph.inputs, *graph.given, *graph.outputs}
    found: set[fx.Node] = set()
    stack = [node for node in graph.results if node is not None]
    while stack:
        node = stack.pop()
        if node not in there and node not in found:
            found.add(node)
            stack += node.all_input_nodes
    return len(found)
