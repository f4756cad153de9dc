"""The parts of a graph that one loop can compute: pointwise ops on tensors of one shape that depend on each other."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.graph.bits import is_of_bits, pack, unpack
from pullback.graph.decisions import is_exact
from pullback.graph.partition import cotangent_stride
from pullback.graph.trace import mutates
from pullback.kernels import lowerings
from pullback.kernels.sums import SUMS, columns_of, is_sum

aten = torch.ops.aten

CPU = ("cpu",)
"""The only kind of device, where no other is named."""
_MOST = 64
"""Nodes in a region: a compiler takes more than twice the time for twice as many, and a loop has hundreds."""
FEWEST = 2
"""A kernel of PyTorch's computes one op as well."""


@dataclass(eq=False, slots=True)
class Region:
    """Nodes of a graph that become one kernel.

    Attributes:
        shape: shape of each node's value.
        device: their device.
        exact: whether each 16-bit op rounds its result, as PyTorch's kernels do.
        nodes: the nodes in the order of the graph; sums come last.
        sums: those nodes that are sums or means over everything.
        column_sums: those that are sums or means over rows, all with the same number of columns; they come after the
            others.
        inputs: outside nodes that they read, except constants.
        outputs: nodes that are read outside; sums come last. If only a packed mask is read, it takes the node's place.
        bits: those of the inputs and outputs that the kernel reads and writes as packed bits.
    """

    shape: torch.Size
    device: torch.device
    exact: bool = False
    nodes: list[fx.Node] = field(default_factory=list)
    sums: list[fx.Node] = field(default_factory=list)
    column_sums: list[fx.Node] = field(default_factory=list)
    inputs: list[fx.Node] = field(default_factory=list)
    outputs: list[fx.Node] = field(default_factory=list)
    bits: set[fx.Node] = field(default_factory=set)

    @property
    def every_sum(self) -> list[fx.Node]:
        """The sums of both kinds."""
        return [*self.sums, *self.column_sums]

    @property
    def pointwise(self) -> list[fx.Node]:
        """The nodes except sums."""
        return self.nodes[: len(self.nodes) - len(self.sums) - len(self.column_sums)]

    @property
    def stored(self) -> list[fx.Node]:
        """The outputs except sums."""
        return self.outputs[: len(self.outputs) - len(self.sums) - len(self.column_sums)]


def regions_of(
    graph: fx.Graph,
    exact: bool = False,
    taken: Mapping[fx.Node, Placed] = MappingProxyType({}),
    devices: Sequence[str] = CPU,
) -> list[Region]:
    """Return the regions of a graph, none of which depends on its own results; none for a graph with writes.

    Args:
        graph: graph of ATen ops.
        exact: whether regions may contain only ops that are bit-identical to PyTorch's.
        taken: nodes that other regions compute, and these regions.
        devices: device types that have kernels.
    """
    if mutates(graph):
        return []
    growing = _Growing(exact)
    for item in in_order(graph, taken):
        if not isinstance(item, fx.Node):
            growing.pass_by(item)
        elif is_ours(item, devices) and (not exact or _is_exact(item)):
            growing.add(item)
        else:
            growing.leave_out(item)
    for node in growing.sums:
        growing.take(node)
    return [_finished(region) for region in growing.found.values() if _is_worth_it(region)]


class _Growing:
    """The regions of a graph, while nodes are added to them.

    Attributes:
        found: regions by the numbers that `Order` gives them.
        sums: nodes that regions may take in once they have all others.
    """

    def __init__(self, exact: bool) -> None:
        self._exact = exact
        self._order = Order()
        self._full = 0
        """Regions that no node is added to, as a set of `Order`."""
        self._alike: dict[tuple[torch.Size, torch.device], int] = {}
        """The regions of a shape and a device, as a set of `Order`."""
        self._home: dict[fx.Node, int] = {}
        self.found: dict[int, Region] = {}
        self.sums: dict[fx.Node, int] = {}

    def add(self, node: fx.Node) -> None:
        """Add a node to the latest region that it fits in, or to a new one."""
        kind = value_of(node).shape, value_of(node).device
        read = [a for a in node.all_input_nodes if lowerings.constant_of(a) is None]
        alike = self._alike.get(kind, 0) & ~self._full
        number = (alike & ~self._order.closed(read)).bit_length() - 1
        if number < 0:
            number = self._order.region()
            self.found[number] = Region(*kind, self._exact)
            self._alike[kind] = self._alike.get(kind, 0) | 1 << number
        self.found[number].nodes.append(node)
        if len(self.found[number].nodes) >= _MOST:
            self._full |= 1 << number
        self._home[node] = number
        self._order.join([node], number, read)

    def leave_out(self, node: fx.Node) -> None:
        """Add a node that no loop computes; a sum becomes a separate region, which `take` may merge into another."""
        if node.target in SUMS and not self._exact:
            self.sums[node] = self._order.region()
            self._order.join([node], self.sums[node], node.all_input_nodes)
        else:
            self._order.stay_out(node)

    def pass_by(self, region: Placed) -> None:
        """Add a finished region."""
        self._order.join(region.nodes, self._order.region(), region.inputs)

    def take(self, node: fx.Node) -> None:
        """Add a sum to the region that computes its operand, or to one that reads it element by element."""
        for number in self._around(node):
            region = self.found[number]
            if region.device.type != "cpu" or self._order.runs_before(self.sums[node], number):
                continue
            if is_sum(node):
                region.sums.append(node)
            elif _has_columns(node, region):
                region.column_sums.append(node)
            else:
                continue
            self._order.merge(self.sums[node], number)
            return

    def _around(self, node: fx.Node) -> list[int]:
        """Return the region that computes a node's operand, else those that read it element by element."""
        source: Any = node.args[0]
        if source in self._home:
            return [self._home[source]]
        if lowerings.constant_of(source) is not None:
            return []
        readers = {self._home[user] for user in source.users if user in self._home}
        return [number for number in sorted(readers) if self.found[number].shape == value_of(source).shape]


def _is_worth_it(region: Region) -> bool:
    """Whether a region has several ops, or reads or writes what PyTorch's kernels do not: packed bits, constants.

    A kernel of ours does not depend on `zeros_like(x)`, nor on x, and the regions are ordered accordingly.
    """
    read = [a for node in region.nodes for a in node.all_input_nodes]
    if any(lowerings.constant_of(a) is not None and a.all_input_nodes for a in read):
        return True
    around = [*read, *(user for node in region.nodes for user in node.users)]
    return len(region.nodes) + len(region.every_sum) >= FEWEST or any(map(is_of_bits, around))


def _has_columns(node: fx.Node, region: Region) -> bool:
    """Whether a node sums over rows of a region; sums of one region are of as many columns."""
    columns = columns_of(node)
    if not columns or columns != columns_of((region.column_sums or [node])[0]):
        return False
    return {value_of(n).stride() for n in region.nodes} == {value_of(node.all_input_nodes[0]).stride()}


def _is_exact(node: fx.Node) -> bool:
    """Whether PyTorch's kernel gives the same bits; on a GPU it divides by a number by multiplying with its inverse."""
    if value_of(node).device.type != "cpu" and node.target in (aten.div.Tensor, aten.div.Scalar):
        by = node.args[1]
        if not isinstance(by, fx.Node) or lowerings.constant_of(by) is not None:
            return False
    return is_exact(node) and not _narrows(node)


def _narrows(node: fx.Node) -> bool:
    """Whether an op computes in 16 bits and reads an operand of another dtype, such as a zero-dimensional tensor.

    PyTorch's kernels cast the operand first, but some do not if it is a factor.
    """
    result = value_of(node).dtype
    read = {value_of(a).dtype for a in node.all_input_nodes if value_of(a).dtype.is_floating_point}
    if node.target is aten._to_copy.default:
        return False
    if result.is_floating_point:
        return bool(result.itemsize == 2 and read - {result})
    return len(read) > 1 and any(dtype.itemsize == 2 for dtype in read)


def _finished(region: Region) -> Region:
    region.nodes += region.every_sum
    inside = set(region.nodes)
    read = dict.fromkeys(a for node in region.nodes for a in node.all_input_nodes if a not in inside)
    region.inputs = [a for a in read if lowerings.constant_of(a) is None]
    region.outputs = [node for node in region.nodes if any(user not in inside for user in node.users)]
    if len({value_of(node).stride() for node in region.pointwise}) == 1:
        _take_bits(region, value_of(region.nodes[0]).stride(), inside)
    return region


def _take_bits(region: Region, stride: tuple[int, ...], inside: set[fx.Node]) -> None:
    """Let a region read and write masks as packed bits, if they have the layout of its values."""
    for a in region.inputs:
        if a.target is unpack and (value_of(a).shape, value_of(a).stride()) == (region.shape, stride):
            region.bits.add(a)
    outputs = []
    for node in region.outputs:
        of_bits = [user for user in node.users if user.target is pack and user.args[1] == stride]
        region.bits.update(of_bits)
        outputs += of_bits
        if not inside.issuperset(set(node.users).difference(of_bits)):
            outputs.append(node)
    region.outputs = outputs


def behind(output: fx.Node) -> fx.Node:
    """Return the node that a kernel computes for an output: for packed bits, the mask."""
    return output.all_input_nodes[0] if output.target is pack else output


def is_ours(node: fx.Node, devices: Sequence[str] = CPU) -> bool:
    """Whether our kernels for some kinds of devices compute a node."""
    if node.op != "call_function" or node.target not in lowerings.LOWERINGS or lowerings.constant_of(node) is not None:
        return False
    value, lowering = value_of(node), lowerings.LOWERINGS[node.target]
    operands = [value_of(a) for a in node.all_input_nodes]
    if not all(isinstance(t, Tensor) and _is_plain(t, devices) for t in (value, *operands)) or not value.numel():
        return False
    read = [value_of(a) for a in node.all_input_nodes if lowerings.constant_of(a) is None]
    if not (lowering.in_triton or value.device.type == "cpu") or not (lowering.in_16_bits or value.dtype.itemsize > 2):
        return False
    if any(t.device != value.device for t in read):  # a number on the CPU, among tensors on a GPU
        return False
    if cotangent_stride(value) != tuple(value.stride()):  # it overlaps, or has gaps
        return False
    return _fits(node, value.dtype, [t.dtype for t in operands])


def _is_plain(t: Tensor, devices: Sequence[str]) -> bool:
    return t.device.type in devices and t.dtype in lowerings.COMPUTED and t.layout is torch.strided


def _fits(node: fx.Node, result: torch.dtype, operands: Iterable[torch.dtype]) -> bool:
    """Whether the dtypes are those for which the op is in the table, and its other arguments are as well."""
    if node.target in lowerings.FLOATING:
        fits = result != torch.bool
    elif node.target in lowerings.LOGICAL:
        fits = all(dtype == torch.bool for dtype in operands)
    else:
        fits = True
    return fits and lowerings.is_lowered(node)


def value_of(node: fx.Node) -> Any:
    """Return the traced value of a node, possibly a tensor without data."""
    if node.op == "get_attr":
        return operator.attrgetter(str(node.target))(node.graph.owning_module)
    return _torch.traced_value(node)


class Placed(Protocol):
    """A region with a complete list of nodes; `inputs` are the outside nodes that they read."""

    nodes: list[fx.Node]
    inputs: list[fx.Node]


R = TypeVar("R", bound=Placed)


def in_order(graph: fx.Graph, home: Mapping[fx.Node, R]) -> Iterator[fx.Node | R]:
    """Yield the regions of a graph, and the nodes in none of them, each after its operands.

    Args:
        graph: its order is kept where possible.
        home: the region of each node that is in one.
    """
    yielded: set[fx.Node | R] = set()
    for node in graph.nodes:
        stack: list[fx.Node | R] = [home.get(node, node)]
        while stack:
            at = stack[-1]
            read = at.all_input_nodes if isinstance(at, fx.Node) else at.inputs
            waiting = [] if at in yielded else [b for a in read if (b := home.get(a, a)) not in yielded]
            stack += waiting
            if not waiting:
                stack.pop()
                if at not in yielded:
                    yielded.add(at)
                    yield at


class Order:
    """Regions by number, and those that have to run before each.

    A node comes after all that it reads. Sets of regions are the bits of a number.
    """

    def __init__(self) -> None:
        self._before: list[int] = []
        self._region: dict[fx.Node, int] = {}
        self._latest: dict[fx.Node, int] = {}
        """For a node in no region, the latest regions that run before it: those without a successor among them."""

    def region(self) -> int:
        """Return the number of a new region without nodes."""
        self._before.append(0)
        return len(self._before) - 1

    def join(self, nodes: Iterable[fx.Node], region: int, read: Collection[fx.Node]) -> None:
        """Add nodes to a region; `read` are their operands."""
        self._region.update(dict.fromkeys(nodes, region))
        direct, through = self._reached(read)
        reached = (direct | through) & ~(1 << region)
        self._run_before(region, reached | self._all_before(reached))

    def stay_out(self, node: fx.Node) -> None:
        """Add a node that is in no region."""
        direct, through = self._reached(node.all_input_nodes)
        self._latest[node] = (direct | through) & ~self._all_before(direct | through)

    def closed(self, read: Collection[fx.Node]) -> int:
        """Return the regions that a node cannot join because something outside of them has to run in between.

        Args:
            read: the node's operands.
        """
        direct, through = self._reached(read)
        return through | self._all_before(direct | through)

    def runs_before(self, one: int, other: int) -> bool:
        """Whether a region has to run before another."""
        return bool(self._before[other] >> one & 1)

    def merge(self, one: int, other: int) -> None:
        """Merge a region into another, which does not depend on it. No nodes may be added afterwards."""
        bit = 1 << other
        self._run_before(other, self._before[one] & ~bit)
        for region, before in enumerate(self._before):
            if before >> one & 1:
                self._before[region] = before | bit | self._before[other]

    def _reached(self, read: Collection[fx.Node]) -> tuple[int, int]:
        """Return the regions that some nodes are in, and the latest that run before those in no region."""
        direct = through = 0
        for a in read:
            if a in self._region:
                direct |= 1 << self._region[a]
            else:
                through |= self._latest.get(a, 0)
        return direct, through

    def _all_before(self, regions: int) -> int:
        before = 0
        while regions:
            latest = regions.bit_length() - 1
            before |= self._before[latest]
            regions &= ~(self._before[latest] | 1 << latest)
        return before

    def _run_before(self, region: int, found: int) -> None:
        """Note that some regions, and all before these, run before one, and before all after it."""
        if found & ~self._before[region]:
            for other, before in enumerate(self._before):
                if other == region or before >> region & 1:
                    self._before[other] = before | found
