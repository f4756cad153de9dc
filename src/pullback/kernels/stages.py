"""Which of several loops over a tile of vectors computes a node.

A processor computes beside one vector what it has read ahead of the next ones, some hundred instructions. Where each
waits for the one before it, as in a chain of elementary functions, that is too few to keep it busy: `log(sigmoid(x))`
takes half more than a loop with `sigmoid` and one with `log`. So a chain is cut, and what crosses a cut is kept for a
tile, which lies in the innermost cache.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import fx

from pullback.kernels import ops
from pullback.kernels.regions import value_of
from pullback.kernels.sides import CHEAP

aten = torch.ops.aten

_FUNCTION = 16
_FEW = (
    "clamp clamp_min clamp_max maximum minimum hardtanh hardtanh_backward threshold threshold_backward leaky_relu "
    "leaky_relu_backward round floor ceil trunc frac hardsigmoid hardswish"
)
"""Ops of some instructions."""
_TIME = {
    **dict.fromkeys(CHEAP, 1),
    **dict.fromkeys([aten.div.Tensor, aten.div.Scalar, aten.reciprocal.default, aten.sqrt.default], 4),
    aten.rsqrt.default: 8,
    **dict.fromkeys([aten.sigmoid_backward.default, aten.tanh_backward.default, ops.softplus_slope], 3),
    **dict.fromkeys([getattr(aten, name).default for name in _FEW.split()], 3),
    ops.softplus_sum: 3,
    ops.tanh_softplus: 8,
}
"""How long results are waited for, in additions; an elementary function about as long as the last one."""
_LONG = 6
"""What is worth a cut before a function."""
_LONG_AFTER = 8
"""What is worth one after a function."""


def stages_of(
    nodes: Sequence[fx.Node], outputs: Collection[fx.Node], reads: Mapping[fx.Node, Sequence[fx.Node]]
) -> dict[fx.Node, int]:
    """Return for each node the number of its loop, none of which reads what a later one computes.

    Args:
        nodes: in an order in which each stands after what it reads.
        outputs: of the nodes, those that are stored, where they are computed.
        reads: what has to be there before a node, conditions of the sides around it included.
    """
    stages: dict[fx.Node, int] = {}
    waited: dict[fx.Node, int] = {}
    to_come = _to_come(nodes, reads)
    for node in nodes:
        before = [a for a in reads[node] if a in stages]
        stage = max((stages[a] for a in before), default=0)
        ahead = max((waited[a] for a in before if stages[a] == stage), default=0)
        time = _time_of(node)
        if ahead > _LONG if time == _FUNCTION else ahead >= _FUNCTION and to_come[node] >= _LONG_AFTER:
            stage, ahead = stage + 1, 0
        stages[node], waited[node] = stage, ahead + time
    _delay(nodes, outputs, reads, stages)
    return stages


def _to_come(nodes: Sequence[fx.Node], reads: Mapping[fx.Node, Sequence[fx.Node]]) -> dict[fx.Node, int]:
    """Return how long it takes from where all that a node reads is there to the end of the chain it is in."""
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
    return _TIME.get(node.target, _FUNCTION)


def _delay(
    nodes: Sequence[fx.Node],
    outputs: Collection[fx.Node],
    reads: Mapping[fx.Node, Sequence[fx.Node]],
    stages: dict[fx.Node, int],
) -> None:
    """Have cheap nodes computed where they are read first, if what is kept of what they read is no larger."""
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
