"""The parts of a graph that one loop can compute: pointwise ops on tensors of one shape that depend on each other."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.graph.bits import is_of_bits, pack, unpack
from pullback.graph.decisions import is_exact
from pullback.graph.joint import cotangent_stride, mutates
from pullback.kernels import ops
from pullback.kernels.column_sums import columns_of
from pullback.kernels.sums import SUMS, is_sum

aten = torch.ops.aten

CPU = ("cpu",)
"""The only kind of device, where no other is named."""
FEWEST = 2
"""A kernel of PyTorch's computes one op as well."""


@dataclass(eq=False, slots=True)
class Region:
    """Nodes of a graph that become one kernel.

    Attributes:
        shape: of what each of them computes.
        device: that all of it is on.
        exact: whether each op of 16 bits rounds its result, as PyTorch's kernels do.
        nodes: in the order of the graph; sums come last.
        sums: of these, those that are sums or means over everything.
        column_sums: those that are sums or means over rows, all of as many columns; they come after the others.
        inputs: nodes outside that they read, but for constants.
        outputs: of the nodes, those that are read outside; sums come last. Where only their bits are, these.
        bits: of inputs and outputs, the truth values that the kernel reads as bits, and the bits that it writes.
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
        """The nodes but for sums."""
        return self.nodes[: len(self.nodes) - len(self.sums) - len(self.column_sums)]

    @property
    def stored(self) -> list[fx.Node]:
        """The outputs but for sums."""
        return self.outputs[: len(self.outputs) - len(self.sums) - len(self.column_sums)]

    def reads_whole(self, node: fx.Node) -> bool:
        """Whether a node is in the region, or is read there element by element."""
        if node in self.nodes:
            return True
        read = any(node in n.all_input_nodes for n in self.nodes) and ops.constant_of(node) is None
        return read and bool(value_of(node).shape == self.shape)


def regions_of(
    graph: fx.Graph,
    exact: bool = False,
    taken: Mapping[fx.Node, Any] = MappingProxyType({}),
    devices: Sequence[str] = CPU,
) -> list[Region]:
    """Return the regions of a graph, none of which waits for what follows it; none where something is written to.

    Args:
        graph: of ATen ops.
        exact: whether only ops whose results have the bits of PyTorch's may be in them.
        taken: nodes that other regions compute, and these.
        devices: kinds of devices that there are kernels for.
    """
    if mutates(graph):
        return []
    found: list[Region] = []
    home: dict[fx.Node, Any] = dict(taken)
    for node in graph.nodes:
        if node in taken or not is_ours(node, devices) or (exact and not _is_exact(node)):
            continue
        shape, device = value_of(node).shape, value_of(node).device
        for region in reversed(found):
            if (region.shape, region.device) == (shape, device) and not waits(node.all_input_nodes, region, home):
                break
        else:
            region = Region(shape, device, exact)
            found.append(region)
        region.nodes.append(node)
        home[node] = region
    for node in graph.nodes if not exact else ():
        if node.target in SUMS and node not in taken:
            _take_sum(node, found, home)
    return [_finished(region) for region in found if _is_worth_it(region)]


def _is_worth_it(region: Region) -> bool:
    """Whether there are several ops, or bits, which PyTorch's kernels do not read or write."""
    around = [a for node in region.nodes for a in (*node.all_input_nodes, *node.users)]
    return len(region.nodes) + len(region.every_sum) >= FEWEST or any(map(is_of_bits, around))


def _take_sum(node: fx.Node, found: Iterable[Region], home: dict[fx.Node, Any]) -> None:
    """Add a sum to the region that computes what it sums, or to one that reads it."""
    source: Any = node.args[0]
    around = home.get(source)
    for region in [around] if isinstance(around, Region) else found:
        if region.device.type != "cpu" or not region.reads_whole(source) or needs(region.nodes, node, home):
            continue
        if is_sum(node):
            region.sums.append(node)
        elif _has_columns(node, region):
            region.column_sums.append(node)
        else:
            continue
        home[node] = region
        return


def _has_columns(node: fx.Node, region: Region) -> bool:
    """Whether a node sums over rows of a region; sums of one region are of as many columns."""
    if {value_of(n).stride() for n in region.nodes} != {value_of(node.all_input_nodes[0]).stride()}:
        return False
    columns = columns_of(node)
    return columns > 0 and columns == columns_of((region.column_sums or [node])[0])


def needs(nodes: Iterable[fx.Node], node: fx.Node, home: Mapping[fx.Node, Any]) -> bool:
    """Whether some nodes of a region wait for one outside of it."""
    read = {a for n in nodes for a in n.all_input_nodes}
    return node in read or waits(read, node, {**home, node: node})


def _is_exact(node: fx.Node) -> bool:
    """Whether PyTorch's kernel gives the same bits; on a GPU it divides by a number by multiplying with its inverse."""
    if value_of(node).device.type != "cpu" and node.target in (aten.div.Tensor, aten.div.Scalar):
        by = node.args[1]
        if not isinstance(by, fx.Node) or ops.constant_of(by) is not None:
            return False
    return is_exact(node)


def waits(read: Iterable[fx.Node], region: Any, home: Mapping[fx.Node, Any]) -> bool:
    """Whether what reads some nodes needs, by way of something outside of a region, what the region computes.

    Other regions are one thing each: what one of their nodes needs, they need.
    """
    seen: set[Any] = set()
    stack = [a for a in read if home.get(a) is not region]
    while stack:
        at = stack.pop()
        around = home.get(at)
        if around is region:
            return True
        if (around or at) not in seen:
            seen.add(around or at)
            stack += [a for member in (around.nodes if around else [at]) for a in member.all_input_nodes]
    return False


def _finished(region: Region) -> Region:
    region.nodes += region.every_sum
    inside = set(region.nodes)
    read = dict.fromkeys(a for node in region.nodes for a in node.all_input_nodes if a not in inside)
    region.inputs = [a for a in read if ops.constant_of(a) is None]
    region.outputs = [node for node in region.nodes if any(user not in inside for user in node.users)]
    if len({value_of(node).stride() for node in region.pointwise}) == 1:
        _take_bits(region, value_of(region.nodes[0]).stride(), inside)
    return region


def _take_bits(region: Region, stride: tuple[int, ...], inside: set[fx.Node]) -> None:
    """Have a region read and write the bits themselves, of truth values that lie as all its values do."""
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
    """Return what a kernel computes to write an output: for bits the truth values."""
    return output.all_input_nodes[0] if output.target is pack else output


def is_ours(node: fx.Node, devices: Sequence[str] = CPU) -> bool:
    """Whether our kernels for some kinds of devices compute a node."""
    if node.op != "call_function" or node.target not in _KNOWN or ops.constant_of(node) is not None:
        return False
    value = value_of(node)
    operands = [value_of(a) for a in node.all_input_nodes]
    if not all(isinstance(t, Tensor) and _is_plain(t, devices) for t in (value, *operands)) or not value.numel():
        return False
    read = [value_of(a) for a in node.all_input_nodes if ops.constant_of(a) is None]
    if any(t.device != value.device for t in read):  # a number on the CPU, among tensors on a GPU
        return False
    if cotangent_stride(value) != tuple(value.stride()):  # it overlaps, or has gaps
        return False
    return _fits(node, value.dtype, [t.dtype for t in operands])


_KNOWN = frozenset([*ops.FLOATING, *ops.COMPARING, *ops.LOGICAL, *ops.CHOOSING])


def _is_plain(t: Tensor, devices: Sequence[str]) -> bool:
    return t.device.type in devices and t.dtype in ops.COMPUTED and t.layout is torch.strided


def _fits(node: fx.Node, result: torch.dtype, operands: Iterable[torch.dtype]) -> bool:
    """Whether the dtypes are those for which the op is in the table, and its other arguments are as well."""
    if node.target in ops.FLOATING:
        fits = result != torch.bool
    elif node.target in ops.LOGICAL:
        fits = all(dtype == torch.bool for dtype in operands)
    else:
        fits = True
    return fits and ops.is_written(node)


def value_of(node: fx.Node) -> Any:
    """Return the tensor, perhaps without values, that a node stands for."""
    if node.op == "get_attr":
        return operator.attrgetter(str(node.target))(node.graph.owning_module)
    return _torch.traced_value(node)
