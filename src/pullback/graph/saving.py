"""Partition of a joint graph: the residuals of a forward, chosen by bytes; the backward recomputes the rest.

A minimum cut between the forward's values and those that the backward reads, as in Chen et al., "Training deep nets
with sublinear memory cost", 2016, and in PyTorch's own partitioner: cutting a value costs its bytes, and pointwise ops
and views may be recomputed from values before the cut. Masks may be saved, packed to bits where supported; a comparison
that only the backward needs then moves to the forward, if that is the cheapest cut.

The operands of a decision (`pullback.graph.decisions`) must be bit-identical to the forward's: they are recomputed only
by ops that all kernels compute alike, from values that are exact themselves. So the flow network has two nodes for a
value that other ops recompute: its exact value, and any value close to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor, fx

from pullback.dtypes import is_continuous
from pullback.graph.bits import bytes_of, is_packed
from pullback.graph.decisions import decides, is_cheap, is_reproducible

_RESULT = 0.9
"""Fraction of its bytes that an output costs: the caller may release it."""

Read = tuple[fx.Node, bool]
"""A value that is read, and whether it must be bit-identical to the forward's."""


def chosen(
    inputs: Collection[fx.Node],
    outputs: Collection[Any],
    read: Iterable[Read],
    early: Collection[fx.Node],
    bits: bool,
) -> set[fx.Node]:
    """Return the values to save; all that the backward reads can be computed from them by cheap ops.

    Args:
        inputs: of the forward.
        outputs: of the forward.
        read: nodes of the forward, inputs and nodes of `early` that the rest of the backward reads.
        early: nodes of the backward that `early_of` gives.
        bits: whether truth values are packed.
    """
    certain = _Certain(inputs)
    wanted = {(node, exactly and not certain(node)) for node, exactly in read if node.op != "get_attr"}
    reads: dict[Read, list[Read]] = {}
    sources: set[Read] = set()
    stack = list(wanted)
    while stack:
        at = node, exactly = stack.pop()
        if at in reads:
            continue
        reads[at] = []
        if node in inputs or not is_cheap(node) or (exactly and node not in early and not is_reproducible(node)):
            sources.add(at)
        else:
            operands = [a for a in node.all_input_nodes if a.op != "get_attr"]
            reads[at] += [(a, (exactly or decides(node, a)) and not certain(a)) for a in operands]
            stack += reads[at]
    if all(node in inputs for node, _ in sources):
        return {node for node, _ in sources}
    prices = {at: _price(at[0], inputs, outputs, early, bits) for at in reads}
    return {node for node, _ in _cut(prices, reads, sources, wanted)}


class _Certain:
    """Decides which values are bit-identical to the forward's: saved, or computed by exact ops from such values.

    Booleans and integers are, since every decision reads exact values.
    """

    def __init__(self, inputs: Collection[fx.Node]) -> None:
        self._known = dict.fromkeys(inputs, True)

    def __call__(self, node: fx.Node) -> bool:
        stack = [node]
        while stack:
            at = stack[-1]
            waiting = [a for a in at.all_input_nodes if a not in self._known] if is_cheap(at) else []
            if at in self._known or not waiting:
                stack.pop()
                self._known.setdefault(at, self._is(at))
            else:
                stack += waiting
        return self._known[node]

    def _is(self, node: fx.Node) -> bool:
        value = node.meta.get("val")
        if not is_cheap(node) or (isinstance(value, Tensor) and not is_continuous(value.dtype)):
            return True
        return is_reproducible(node) and all(self._known[a] for a in node.all_input_nodes)


def _cut(prices: dict[Read, float], reads: dict[Read, list[Read]], sources: set[Read], wanted: set[Read]) -> set[Read]:
    """Return the cheapest set of nodes that cuts every path from the sources to the wanted values."""
    import networkx as nx  # type: ignore[import-untyped]  # here, since it takes a tenth of a second

    graph = nx.DiGraph()
    graph.add_nodes_from((_START, _END))
    for at, price in prices.items():
        graph.add_edge((at, "in"), (at, "out"), capacity=price)
        if at in sources:
            graph.add_edge(_START, (at, "in"))  # without a capacity, which is infinite
        graph.add_edges_from(((a, "out"), (at, "in")) for a in reads[at])
        if at in wanted:
            graph.add_edge((at, "out"), _END)
    _, (before, _) = nx.minimum_cut(graph, _START, _END)
    return {at for at in prices if (at, "in") in before and (at, "out") not in before}


_START, _END = "start", "end"


def early_of(later: Iterable[fx.Node], cotangents: Iterable[fx.Node]) -> set[fx.Node]:
    """Return the nodes of a backward that cheap ops compute from forward values, independent of cotangents."""
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
    node: fx.Node, inputs: Collection[fx.Node], outputs: Collection[Any], early: Collection[fx.Node], bits: bool
) -> float:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return float("inf")
    if node in inputs:
        return 0.0  # the node keeps every input, for derivatives of higher order
    if bits and node not in outputs and is_packed(value):
        return bytes_of(value.numel()) + 1
    if node in early and value.dtype != torch.bool:
        return float("inf")  # no smaller than its operands
    return (value.numel() * value.element_size() + 1) * (_RESULT if node in outputs else 1.0)
