"""Residuals of a written forward: inputs and outputs whose values are read, and shapes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from torch import fx

from pullback.write.graphs import Graph
from pullback.write.statements import is_size, needed


@dataclass(slots=True)
class Kept:
    """Residuals of a forward.

    Attributes:
        saved: names of tensors, and their nodes.
        shapes: names of inputs that are needed for their shape only, and their nodes.
    """

    saved: dict[str, fx.Node] = field(default_factory=dict)
    shapes: dict[str, fx.Node] = field(default_factory=dict)


def kept_for(graph: Graph, names: Mapping[fx.Node, str], shaped: Collection[str] = ()) -> Kept:
    """Return the residuals that a graph's results need; an input that is read for its sizes alone counts as a shape.

    Args:
        graph: of the derivative.
        names: of the inputs and outputs that can be saved, in the order in which they are.
        shaped: names of further inputs whose shapes are read.
    """
    wanted = [node for node in graph.results if node is not None]
    kept = Kept()
    for node in [*needed(wanted, [*names, *graph.given]), None]:
        for a in wanted if node is None else node.all_input_nodes:
            if a in names:
                sizes = node is not None and is_size(node) and a in graph.inputs
                (kept.shapes if sizes else kept.saved)[names[a]] = a
    kept.shapes |= {names[node]: node for node in graph.inputs if names[node] in shaped}
    for name in kept.saved:
        kept.shapes.pop(name, None)
    order = {name: i for i, name in enumerate(names.values())}
    kept.saved = dict(sorted(kept.saved.items(), key=lambda item: order[item[0]]))
    return kept
