"""Assignment of nodes to several loops over a tile of vectors.

While a processor waits for one vector, it works on the instructions of the next ones that it has read ahead, some
hundred. In a chain of elementary functions, where each depends on the one before, these are too few to fill the
latency: `log(sigmoid(x))` takes 1.5x the time of a loop with `sigmoid` and one with `log`. So a chain is split into
loops, and values that cross a split are stored for a tile, which fits the L1 cache.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import fx

from pullback.kernels import lowerings
from pullback.kernels.regions import value_of
from pullback.kernels.sides import CHEAP
from pullback.ops.lowering import FUNCTION

aten = torch.ops.aten

_LONG = 6
"""Latency, in additions, above which splitting the loop before an elementary function pays."""
_LONG_AFTER = 8
"""Latency, in additions, of the rest of a chain from which splitting the loop after an elementary function pays."""


def stages_of(
    nodes: Sequence[fx.Node], outputs: Collection[fx.Node], reads: Mapping[fx.Node, Sequence[fx.Node]]
) -> dict[fx.Node, int]:
    """Return for each node the number of its loop; no loop reads results of a later one.

    Args:
        nodes: in topological order.
        outputs: nodes that are stored in the loop that computes them.
        reads: the operands of a node, conditions of the enclosing branches included.
    """
    stages: dict[fx.Node, int] = {}
    waited: dict[fx.Node, int] = {}
    to_come = _to_come(nodes, reads)
    for node in nodes:
        before = [a for a in reads[node] if a in stages]
        stage = max((stages[a] for a in before), default=0)
        ahead = max((waited[a] for a in before if stages[a] == stage), default=0)
        time = _time_of(node)
        if ahead > _LONG if time == FUNCTION else ahead >= FUNCTION and to_come[node] >= _LONG_AFTER:
            stage, ahead = stage + 1, 0
        stages[node], waited[node] = stage, ahead + time
    _delay(nodes, outputs, reads, stages)
    return stages


def _to_come(nodes: Sequence[fx.Node], reads: Mapping[fx.Node, Sequence[fx.Node]]) -> dict[fx.Node, int]:
    """Return the latency from a node's operands to the end of the longest chain through the node."""
    after = dict.fromkeys(nodes, 0)
    for node in reversed(nodes):
        after[node] += _time_of(node)
        for a in reads[node]:
            if a in after:
                after[a] = max(after[a], after[node])
    return after


def _time_of(node: fx.Node) -> int:
    if node.target == aten.pow.Tensor_Scalar and node.args[1] in (1, 2, 3):
        return 2
    lowering = lowerings.LOWERINGS.get(node.target)
    return lowering.latency if lowering else FUNCTION


def _delay(
    nodes: Sequence[fx.Node],
    outputs: Collection[fx.Node],
    reads: Mapping[fx.Node, Sequence[fx.Node]],
    stages: dict[fx.Node, int],
) -> None:
    """Move cheap nodes to the loop that reads them first, if their operands take no more memory than they do."""
    readers: dict[fx.Node, list[fx.Node]] = {node: [] for node in nodes}
    for node in nodes:
        for a in reads[node]:
            if a in readers:
                readers[a].append(node)
    for node in reversed(nodes):
        if node in outputs or node.target not in CHEAP or not readers[node]:
            continue
        stage = min(stages[reader] for reader in readers[node])
        own = [a for a in reads[node] if a in readers and all(stages[r] < stage for r in readers[a] if r is not node)]
        if sum(map(_size_of, own)) <= _size_of(node):
            stages[node] = stage


def _size_of(node: fx.Node) -> int:
    size: int = value_of(node).dtype.itemsize
    return size
