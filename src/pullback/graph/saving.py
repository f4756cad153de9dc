"""What a forward saves for its backward, chosen by bytes; what is not saved is computed again.

A minimum cut between what is there and what the backward reads, as in Chen et al., "Training deep nets with sublinear
memory cost", 2016, and in PyTorch's own partitioner: each value can be cut at the price of its bytes, and values of
pointwise ops and views can be computed again from what is before the cut. Truth values may be kept as bits; then what
the backward alone compares is compared in the forward, if that is the cheapest cut.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.graph.bits import bytes_of, is_packed

_RESULT = 0.9
"""Part of its bytes that an output costs: the caller may let go of it."""


def chosen(
    inputs: Collection[fx.Node],
    outputs: Collection[Any],
    read: Iterable[fx.Node],
    early: Collection[fx.Node] | None = None,
) -> set[fx.Node]:
    """Return the values to save; all that the backward reads can be computed from them by cheap ops.

    Args:
        inputs: of the forward.
        outputs: of the forward.
        read: nodes of the forward, inputs and nodes of `early` that the rest of the backward reads.
        early: nodes of the backward that `early_of` gives, if truth values are kept as bits.
    """
    prices: dict[fx.Node, float] = {}
    sources: set[fx.Node] = set()
    stack = [node for node in read if node.op != "get_attr"]
    wanted = set(stack)
    while stack:
        node = stack.pop()
        if node in prices:
            continue
        prices[node] = _price(node, inputs, outputs, early)
        if node in inputs or not is_cheap(node):
            sources.add(node)
        else:
            stack += [a for a in node.all_input_nodes if a.op != "get_attr"]
    if all(source in inputs for source in sources):
        return sources
    return _cut(prices, sources, wanted)


def _cut(prices: dict[fx.Node, float], sources: set[fx.Node], wanted: set[fx.Node]) -> set[fx.Node]:
    """Return the cheapest nodes that stand on every way from the sources to what is wanted."""
    import networkx as nx  # type: ignore[import-untyped]  # here, since it takes a tenth of a second

    graph = nx.DiGraph()
    graph.add_nodes_from((_START, _END))
    for node, price in prices.items():
        graph.add_edge((node, "in"), (node, "out"), capacity=price)
        if node in sources:
            graph.add_edge(_START, (node, "in"))  # without a capacity, which is infinite
        else:
            graph.add_edges_from(((a, "out"), (node, "in")) for a in node.all_input_nodes if a in prices)
        if node in wanted:
            graph.add_edge((node, "out"), _END)
    _, (before, _) = nx.minimum_cut(graph, _START, _END)
    return {node for node in prices if (node, "in") in before and (node, "out") not in before}


_START, _END = "start", "end"


def is_cheap(node: fx.Node) -> bool:
    """Whether to compute a node again costs about what it costs to read what it computes."""
    if node.target is operator.getitem:
        return is_cheap(node.all_input_nodes[0])
    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags or node.target in _OTHERS or _torch.is_view(node.target)


_OTHERS = frozenset(
    getattr(torch.ops.aten, name).default
    for name in [
        "_to_copy",
        "clone",
        "full",
        "full_like",
        "zeros_like",
        "ones_like",
        "scalar_tensor",
        "log_sigmoid_forward",
    ]
)
"""Ops that PyTorch does not tag."""


def early_of(later: Iterable[fx.Node], cotangents: Iterable[fx.Node]) -> set[fx.Node]:
    """Return the nodes of a backward that cheap ops compute of what is in the forward, without any cotangent."""
    early: set[fx.Node] = set()
    late = set(cotangents)
    for node in later:
        if node.op == "get_attr":
            continue
        if is_cheap(node) and late.isdisjoint(node.all_input_nodes):
            early.add(node)
        else:
            late.add(node)
    return early


def _price(
    node: fx.Node, inputs: Collection[fx.Node], outputs: Collection[Any], early: Collection[fx.Node] | None
) -> float:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return float("inf")
    if node in inputs:
        return 0.0  # the node keeps every input, for derivatives of higher order
    if early is not None and node not in outputs and is_packed(value):
        return bytes_of(value.numel()) + 1
    if early is not None and node in early:
        return float("inf")  # of the bytes of what it is computed from
    return (value.numel() * value.element_size() + 1) * (_RESULT if node in outputs else 1.0)
