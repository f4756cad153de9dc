"""Parts of a graph that a kernel computes row by row: reductions over the last dimension, and the ops around them.

A row region holds values of the whole shape, [..., C], and per-row values, [..., 1] or [...]: sums, means and extremes
of the former, and functions of these. Its kernel makes one pass over a row per dependent reduction, while the row is in
the cache.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from pullback.graph.trace import mutates
from pullback.kernels import lowerings
from pullback.kernels.regions import FEWEST, Order, in_order, is_ours, value_of
from pullback.kernels.sums import COLUMN_SUMS, columns_of

aten = torch.ops.aten

FEWEST_COLUMNS, FEWEST_ROWS = 16, 8
"""Of shorter rows most of a vector would be empty; of fewer, threads have nothing to share."""
_REDUCTIONS = frozenset([aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default])
_VIEWS = frozenset([aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.dim])
"""Which keep the order of elements, so that a value of a row remains one."""


@dataclass(eq=False, slots=True)
class RowRegion:
    """Nodes of a graph that become one row kernel.

    Attributes:
        shape: shape of the values that are reduced.
        nodes: the nodes in the order of the graph; sums over rows come last.
        column_sums: those nodes that are sums or means over rows.
        inputs: outside nodes that they read, except constants.
        outputs: nodes that are read outside.
        alias: maps each view of a per-row value that they read to the value.
        flat: inputs that are per-row values without the last dimension.
        aligned: all other operands: no input is both.
    """

    shape: torch.Size
    nodes: list[fx.Node] = field(default_factory=list)
    column_sums: list[fx.Node] = field(default_factory=list)
    inputs: list[fx.Node] = field(default_factory=list)
    outputs: list[fx.Node] = field(default_factory=list)
    alias: dict[fx.Node, fx.Node] = field(default_factory=dict)
    flat: set[fx.Node] = field(default_factory=set)
    aligned: set[fx.Node] = field(default_factory=set)

    def is_whole(self, node: fx.Node) -> bool:
        """Whether a node's value has an element for each column."""
        return bool(value_of(node).shape == self.shape)

    @property
    def kept(self) -> torch.Size:
        """The shape of a value of each row whose dimension was kept."""
        return torch.Size((*self.shape[:-1], 1))

    def is_of_rows(self, node: fx.Node) -> bool:
        """Whether an input has one number for each row, or less."""
        size = value_of(node).shape
        return node in self.flat or not size or size[-1] == 1

    def reads(self, node: fx.Node) -> Iterator[fx.Node]:
        """Yield the operands of a node, with views of this region's values replaced by the values."""
        for a in node.all_input_nodes:
            yield self.alias.get(a, a)


def is_reduction(node: fx.Node) -> bool:
    """Whether a node is a reduction over the last dimension of an operand that kernels can read."""
    if node.target not in _REDUCTIONS or node.kwargs or lowerings.constant_of(node.all_input_nodes[0]) is not None:
        return False
    args: Any = node.args
    source, result = value_of(args[0]), value_of(node)
    if not all(isinstance(t, Tensor) and _is_plain(t) for t in (source, result)) or source.dim() < 2:
        return False
    dims = args[1] if len(args) > 1 else []
    return (
        len(args) <= 3
        and [d % source.dim() for d in dims or ()] == [source.dim() - 1]
        and source.dtype == result.dtype
        and source.is_contiguous()
        and source.shape[-1] >= FEWEST_COLUMNS
        and source.numel() >= FEWEST_ROWS * source.shape[-1]
    )


def _is_plain(t: Tensor) -> bool:
    return (
        t.device.type == "cpu"
        and t.dtype in lowerings.COMPUTED
        and t.dtype != torch.bool
        and t.layout is torch.strided
        and t.is_contiguous()
    )


def row_regions_of(graph: fx.Graph) -> list[RowRegion]:
    """Return the row regions of a graph, none of which depends on its own results."""
    if mutates(graph) or not any(is_reduction(node) for node in graph.nodes):
        return []
    found: list[RowRegion] = []
    home: dict[fx.Node, RowRegion] = {}
    for shape in dict.fromkeys(value_of(node.all_input_nodes[0]).shape for node in graph.nodes if is_reduction(node)):
        region = _grown(graph, shape, dict(home))
        if len(region.nodes) >= FEWEST and any(map(is_reduction, region.nodes)):
            found.append(region)
            home |= dict.fromkeys(region.nodes, region)
    return found


def _grown(graph: fx.Graph, shape: torch.Size, home: dict[fx.Node, RowRegion]) -> RowRegion:
    """Return the row region of a shape; `home` maps nodes to the regions that have them."""
    region, order = RowRegion(shape), Order()
    number = order.region()
    for item in in_order(graph, dict(home)):
        if isinstance(item, RowRegion):
            order.join(item.nodes, order.region(), item.inputs)
            continue
        source = _row_viewed(item, region, home)
        read = [a for a in region.reads(item) if lowerings.constant_of(a) is None]
        if source is None and _fits(item, region, home) and not order.closed(read) >> number & 1:
            region.nodes.append(item)
            home[item] = region
            order.join([item], number, read)
            continue
        if source is not None:
            region.alias[item] = source
        order.stay_out(item)
    _finish(region, graph, home)
    return region


def _fits(node: fx.Node, region: RowRegion, home: Mapping[fx.Node, RowRegion]) -> bool:
    """Whether a node is a reduction of the region's shape, or pointwise with operands that the region has unchanged."""
    if is_reduction(node):
        return bool(value_of(node.all_input_nodes[0]).shape == region.shape)
    if not is_ours(node) or not value_of(node).is_contiguous():
        return False
    shape, flat = value_of(node).shape, region.shape[:-1]
    if shape not in (region.shape, region.kept, flat):
        return False
    within = [a for a in node.all_input_nodes if home.get(region.alias.get(a, a)) is region]
    if shape != region.shape and not within:
        return False
    seen = [value_of(a).shape for a in within]
    around = [a for a in node.all_input_nodes if a not in within and value_of(a).dim()]
    if shape == flat:  # its dimensions are not the last ones: nothing is broadcast but numbers
        seen += [value_of(a).shape for a in around]
    mine, other = (region.flat, region.aligned) if shape == flat else (region.aligned, region.flat)
    right = (region.shape, region.kept) if shape == region.shape else (shape,)
    if not all(s in right for s in seen) or other.intersection(around):
        return False
    mine.update(around)
    return True


def _row_viewed(node: fx.Node, region: RowRegion, home: Mapping[fx.Node, RowRegion]) -> fx.Node | None:
    """Return the value of a row that a node is a view of."""
    if node.op != "call_function" or node.target not in (*_VIEWS, aten.expand.default):
        return None
    source: Any = node.args[0]
    origin = region.alias.get(source, source)
    if home.get(origin) is not region or region.is_whole(origin):
        return None
    shape, before = value_of(node).shape, value_of(source).shape
    if node.target == aten.expand.default:
        return origin if before == region.kept and shape == region.shape else None
    return origin if before != region.shape and shape in (region.kept, region.shape[:-1]) else None


def _finish(region: RowRegion, graph: fx.Graph, home: Mapping[fx.Node, RowRegion]) -> None:
    """Drop nodes unconnected with any sum, add sums over rows, and determine inputs and outputs."""
    known = {*region.nodes, *_read(region, region.nodes)}
    summed = [n for n in graph.nodes if n.target in COLUMN_SUMS and n not in home and n.args[0] in known]
    summed = [n for n in summed if region.is_whole(n.args[0]) and columns_of(n) == region.shape[-1]]
    linked = set(_linked(region, filter(is_reduction, region.nodes)))
    for node in summed:
        if home.get(node.args[0]) is region and node.args[0] not in linked:
            beside = set(_linked(region, [node.args[0]]))
            if not _read(region, beside).keys().isdisjoint(_read(region, linked)):
                linked |= beside
    region.nodes = [node for node in region.nodes if node in linked]
    region.inputs = list(_read(region, linked))
    region.flat.intersection_update(region.inputs)
    needed = _needed(region, home)
    for node in summed:
        if node.args[0] in linked or (node.args[0] in region.inputs and node not in needed):
            region.column_sums.append(node)
    region.nodes += region.column_sums
    region.outputs = [node for node in region.nodes if _is_read_outside(node, region, {*region.nodes})]


def _read(region: RowRegion, nodes: Collection[fx.Node]) -> dict[fx.Node, None]:
    """Return the operands of some nodes of a region that are not among these nodes, except constants, in order."""
    read = (a for node in region.nodes if node in nodes for a in region.reads(node))
    return {a: None for a in read if a not in nodes and lowerings.constant_of(a) is None}


def _needed(region: RowRegion, home: Mapping[fx.Node, RowRegion]) -> set[fx.Node]:
    """Return the nodes outside of a region that have to run before it."""
    found: set[fx.Node] = set()
    stack = list(region.inputs)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            around = home.get(node, region)
            stack += node.all_input_nodes if around is region else around.inputs
    return found


def _linked(region: RowRegion, start: Iterable[fx.Node]) -> Iterator[fx.Node]:
    """Yield the nodes connected with some nodes."""
    inside = set(region.nodes)
    beside: dict[fx.Node, list[fx.Node]] = {node: [] for node in region.nodes}
    for node in region.nodes:
        for a in region.reads(node):
            if a in inside:
                beside[node].append(a)
                beside[a].append(node)
    stack = list(start)
    seen = set(stack)
    while stack:
        node = stack.pop()
        yield node
        stack += [a for a in beside[node] if a not in seen]
        seen.update(beside[node])


def _is_read_outside(node: fx.Node, region: RowRegion, inside: set[fx.Node]) -> bool:
    """Whether a value is read outside; a view of it counts where that is."""
    return any(
        user not in inside and (user not in region.alias or _is_read_outside(user, region, inside))
        for user in node.users
    )
