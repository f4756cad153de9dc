"""Lowering of a graph to our own kernels: pointwise regions fused, the ops between them in PyTorch's kernels."""

from __future__ import annotations

import ctypes
import math
import operator
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.graph.bits import bytes_of, is_of_bits
from pullback.graph.symbolic import Kind, kind_of
from pullback.kernels import build
from pullback.kernels.bit_packing import passes
from pullback.kernels.compiled import NOTHING_TAKEN, Compiled, direct_call
from pullback.kernels.decompositions import decompose, with_rounded_sums
from pullback.kernels.layout import Layout, Strides, dense, expanded, in_stride, readable
from pullback.kernels.memory import reusing
from pullback.kernels.progress import noticed
from pullback.kernels.regions import CPU, Region, behind, is_ours, regions_of, value_of
from pullback.kernels.row_kernel import RowKernel
from pullback.kernels.rows import RowRegion, row_regions_of
from pullback.kernels.source import source_of
from pullback.triton.kernel import TritonKernel

aten = torch.ops.aten


class Kernel(Compiled):
    """A compiled region that is not a row region.

    Attributes:
        shape, stride: shape and stride of the tensors; an input may have another, and sums have.
        outputs: stride and dtype of each except sums.
        sums: shape, strides and dtype of each, those over rows last.
        last: the compiled function's argument after rows and columns: the number of columns of sums over rows.
        is_direct: whether all tensors have the recorded layout.
    """

    def __init__(self, region: Region) -> None:
        written = source_of(region, build.header())
        self.source, self.over = written.text, written.over
        columns = region.column_sums[:1]
        self._run = build.function_of(self.source, len(region.inputs) + len(region.outputs) + 1, 2 + len(columns))
        self._reads_bits = frozenset(i for i, node in enumerate(region.inputs) if node in region.bits)
        self._writes_bits = frozenset(i for i, node in enumerate(region.stored) if node in region.bits)
        stored = [*map(behind, region.stored)]
        nodes = ([*stored, *region.pointwise][:1], region.inputs, stored, region.every_sum, columns)
        self._kinds = tuple([kind_of(value_of(node)) for node in of_one] for of_one in nodes)
        self._prepare(self._kinds)

    def _prepare(self, kinds: tuple[list[Kind], ...]) -> None:
        ((self.shape, self.stride, _),), inputs, outputs, self.sums, columns = kinds
        self.last = tuple(math.prod(size) for size, _, _ in columns)
        self._sizes = [size for size, _, _ in inputs]
        self.outputs = [(stride, dtype) for _, stride, dtype in outputs]
        self._layouts: dict[tuple[Strides, ...], tuple[Layout, Any, frozenset[int]]] = {}
        alike = all((size, stride) == (self.shape, self.stride) for size, stride, _ in inputs)
        same_layout = bool(inputs) and alike and all(stride == self.stride for stride, _ in self.outputs)
        self.is_direct = same_layout and not self._has_bits
        self.call: Any = self._strided()
        if same_layout:
            last = (None, 1, math.prod(self.shape), *self.last)
            inputs, outputs = self._with_layout(inputs, self._reads_bits), self._with_layout(outputs, self._writes_bits)
            self.call = direct_call(self._run, inputs, [*outputs, *self.sums], last, self._any)
        self.call.kernel = self

    @property
    def _has_bits(self) -> bool:
        return bool(self._reads_bits or self._writes_bits)

    def _with_layout(self, kinds: list[Kind], bits: Collection[int]) -> list[Kind]:
        """Return shape, strides and dtype of tensors, those at `bits` as packed bytes."""
        of_bits = ((bytes_of(math.prod(self.shape)),), (1,), torch.uint8)
        return [of_bits if i in bits else kind for i, kind in enumerate(kinds)]

    @property
    def address(self) -> int:
        """Of the compiled function, which stays where it is."""
        return ctypes.cast(self._run, ctypes.c_void_p).value or 0  # type: ignore[arg-type]

    def _strided(self) -> Callable[..., Any]:
        def call(*inputs: Tensor) -> Any:
            return self._any(*inputs)

        return call

    def _any(self, *inputs: Tensor, taken: Mapping[int, int] = NOTHING_TAKEN) -> Any:
        strides = tuple([self.stride if i in self._reads_bits else x.stride() for i, x in enumerate(inputs)])
        known = self._layouts.get(strides)
        if known is None:
            known = self._layouts[strides] = self._layout(strides)
        layout, steps, scattered = known
        if scattered:
            inputs = tuple(dense(x, self.shape, self.stride) if i in scattered else x for i, x in enumerate(inputs))
        shape, stride = self.shape, self.stride
        outputs = [
            inputs[taken[i]]
            if i in taken and inputs[taken[i]].stride() == stride
            else torch.empty_strided(shape, stride, dtype=dtype)
            for i, (_, dtype) in enumerate(self.outputs)
        ]
        for i in self._writes_bits:
            outputs[i] = torch.empty(bytes_of(math.prod(shape)), dtype=torch.uint8)
        sums = [torch.empty_strided(size, stride, dtype=dtype) for size, stride, dtype in self.sums]
        pointers = [t.data_ptr() for t in (*inputs, *outputs, *sums)]
        self._run(*pointers, steps, layout.rows, layout.columns, *self.last)
        results = [
            y if i in self._writes_bits else in_stride(y, self.outputs[i][0]) for i, y in enumerate(outputs)
        ] + sums
        return results[0] if len(results) == 1 else results

    def _layout(self, strides: tuple[Strides, ...]) -> tuple[Layout, Any, frozenset[int]]:
        """Return how to read inputs, the steps for the kernel, and which of them have to be copied for it."""
        wide = [expanded(s, size, self.shape) for s, size in zip(strides, self._sizes, strict=True)]
        layout, scattered = readable(self.shape, self.stride, wide)
        if self._has_bits and layout.rows > 1 and layout.columns % 8:  # rows would share a byte
            scattered = frozenset(i for i, stride in enumerate(wide) if stride != self.stride)
            layout = Layout(1, math.prod(self.shape), None)
        steps = layout.steps
        return layout, None if steps is None else (ctypes.c_int64 * len(steps))(*steps), scattered


AnyKernel = Kernel | RowKernel | TritonKernel


def is_kernel(target: Any) -> bool:
    """Whether a node of a graph calls a kernel of ours."""
    return isinstance(getattr(target, "kernel", None), AnyKernel)


def lowered(
    modules: Sequence[fx.GraphModule], exact: Sequence[bool], devices: Sequence[str] = CPU
) -> list[fx.GraphModule]:
    """Return graphs whose regions are calls of kernels, compiled side by side.

    Args:
        modules: the graphs.
        exact: for each, whether it has to compute the bits that PyTorch's kernels compute.
        devices: kinds of devices, "cpu" and "cuda", whose tensors are computed so.

    Raises:
        RunnerError: if they cannot be compiled here.
    """
    divided = [_divided(module, bits, devices) for module, bits in zip(modules, exact, strict=True)]
    modules, regions = [module for module, _ in divided], [of_one for _, of_one in divided]
    every = [region for of_one in regions for region in of_one]
    with noticed(f"compiling {len(every)} kernel{'s' * (len(every) > 1)}"):
        made = _all_made(every)
    kernels = {id(region): kernel for region, kernel in zip(every, made, strict=True)}
    rebuilt = [
        _Rebuilt(module, of_one, kernels).module if of_one or any(map(is_of_bits, module.graph.nodes)) else module
        for module, of_one in zip(modules, regions, strict=True)
    ]
    return [reusing(module) or module for module in rebuilt]


def _divided(
    module: fx.GraphModule, exact: bool, devices: Sequence[str]
) -> tuple[fx.GraphModule, list[Region | RowRegion]]:
    """Return a graph, with ops decomposed unless bits must be PyTorch's, and its regions."""
    if exact:
        return module, list(regions_of(module.graph, exact, {}, devices))
    whole: set[str] = set()
    while True:
        made = decompose(module, devices, whole)
        rows = row_regions_of(made.graph)
        home = {node: region for region in rows for node in region.nodes}
        lost = with_rounded_sums(made.graph, home)
        if not lost:
            return made, [*rows, *regions_of(made.graph, exact, home, devices)]
        whole |= lost


def _all_made(regions: Sequence[Region | RowRegion]) -> list[AnyKernel]:
    """Return the kernels of regions: C++ ones compiled in parallel, Triton ones in this process, one by one."""
    if len(regions) < 2 or any(isinstance(region, Region) and region.device.type != "cpu" for region in regions):
        return [_made(region) for region in regions]
    with ThreadPoolExecutor(min(len(regions), os.cpu_count() or 1)) as threads:
        return list(threads.map(_made, regions))


def _made(region: Region | RowRegion) -> AnyKernel:
    if isinstance(region, RowRegion):
        return RowKernel(region)
    return Kernel(region) if region.device.type == "cpu" else TritonKernel(region)


def _operands(region: Region | RowRegion) -> list[fx.Node]:
    """Return the arguments of a region's kernel."""
    if isinstance(region, RowRegion):
        return region.inputs
    return [a.all_input_nodes[0] if a in region.bits else a for a in region.inputs]


class _Rebuilt:
    """Rebuilds a graph in an order in which each region follows its operands."""

    def __init__(
        self,
        module: fx.GraphModule,
        regions: Sequence[Region | RowRegion],
        kernels: Mapping[int, AnyKernel],
    ) -> None:
        self._graph = fx.Graph()
        self._home = {node: region for region in regions for node in region.nodes}
        self._kernels = kernels
        self._made: dict[fx.Node, fx.Node] = {}
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self._made[node] = self._graph.placeholder(node.name)
                self._made[node].meta = dict(node.meta)
        for node in module.graph.nodes:
            if node.op != "output":
                self._place(node)
        results: Any = module.graph.output_node().args[0]
        self._graph.output([self._made[r] if isinstance(r, fx.Node) else r for r in results])
        self._graph.eliminate_dead_code()
        for node in filter(is_of_bits, self._graph.nodes):
            node.target = passes()[node.target]
        self.module = fx.GraphModule(module, self._graph)

    def _place(self, node: fx.Node) -> None:
        """Add a node, or the region that it is in, after all that is read."""
        stack = [node]
        while stack:
            at = stack[-1]
            region = self._home.get(at)
            waiting = [a for a in (_operands(region) if region else at.all_input_nodes) if a not in self._made]
            if at in self._made or not waiting:
                stack.pop()
                if at not in self._made:
                    self._add(at, region)
            else:
                stack += waiting

    def _add(self, node: fx.Node, region: Region | RowRegion | None) -> None:
        if region is None:
            made = self._graph.node_copy(node, self._made.__getitem__)
            if _mixes_dtypes(node) and any(user in self._home or user.op == "output" for user in node.users):
                made = self._graph.call_function(_in_dtype, (made, value_of(node).dtype))
                made.meta = dict(node.meta)
            self._made[node] = made
            return
        call = self._graph.call_function(
            self._kernels[id(region)].call, tuple(self._made[a] for a in _operands(region))
        )
        several = len(region.outputs) > 1
        for i, output in enumerate(region.outputs):
            made = self._graph.call_function(operator.getitem, (call, i)) if several else call
            made.meta = dict(output.meta)
            self._made[output] = made
        for inner in region.nodes:
            self._made.setdefault(inner, call)


def _mixes_dtypes(node: fx.Node) -> bool:
    """Whether an op mixes floating dtypes: PyTorch's kernel may return another dtype than the trace has.

    `smooth_l1_loss_backward` of float16 and bfloat16 returns float16, where fake tensors have float32.
    """
    if not isinstance(node.meta.get("val"), Tensor) or node.target is aten._to_copy.default:
        return False
    values = [a.meta.get("val") for a in (*node.all_input_nodes, node)]
    return len({v.dtype for v in values if isinstance(v, Tensor) and v.dtype.is_floating_point}) > 1


def _in_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype is dtype else x.to(dtype)


@dataclass(frozen=True, slots=True)
class SingleKernel:
    """The only kernel of a graph.

    Attributes:
        kernel: the function to call.
        reads: the placeholder of each tensor that it reads.
        writes: the result of the graph for each tensor that it writes.
    """

    kernel: Kernel
    reads: tuple[int, ...]
    writes: tuple[int, ...]

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Dtypes of its outputs."""
        return tuple(dtype for _, dtype in self.kernel.outputs)


def single_kernel(module: fx.GraphModule) -> SingleKernel | None:
    """Return the kernel that a graph is; `None` if it has others, none, or results that no kernel writes."""
    nodes = [node for node in module.graph.nodes if node.op not in ("placeholder", "output")]
    calls = [node for node in nodes if is_kernel(node.target)]
    if len(calls) != 1 or any(node.target is not operator.getitem for node in nodes if node is not calls[0]):
        return None
    (call,) = calls
    kernel: Any = call.target.kernel
    if not isinstance(kernel, Kernel) or kernel.sums:  # of rows, or with results of another shape
        return None
    results: Any = module.graph.output_node().args[0]
    written = [call] if len(kernel.outputs) == 1 else [_part(call, i) for i in range(len(kernel.outputs))]
    if None in written:  # nothing reads it; an input without a gradient is `None` among the results, too
        return None
    if not kernel.is_direct or len(results) != len(written) or set(results) != set(written):
        return None
    placeholders = module.graph.find_nodes(op="placeholder")
    reads = tuple(placeholders.index(node) for node in call.args)
    return SingleKernel(kernel, reads, tuple(list(results).index(node) for node in written))


@dataclass(frozen=True, slots=True)
class SingleOp:
    """The only op of a graph, a pointwise op of PyTorch on tensors of one layout.

    Attributes:
        name: name of the op, with its overload.
        reads: the placeholder of each tensor that it reads.
        dtypes: the dtype of its one output.
        writes: the result of the graph, always the first.
    """

    name: str
    reads: tuple[int, ...]
    dtypes: tuple[torch.dtype]
    writes: tuple[int] = (0,)


def single_op(module: fx.GraphModule) -> SingleOp | None:
    """Return the pointwise op that a graph is; `None` if it has others, or numbers for arguments."""
    placeholders = module.graph.find_nodes(op="placeholder")
    nodes = [node for node in module.graph.nodes if node.op not in ("placeholder", "output")]
    results: Any = module.graph.output_node().args[0]
    if len(nodes) != 1 or list(results) != nodes or not is_ours(nodes[0]):
        return None
    (node,) = nodes
    if node.kwargs or any(a not in placeholders for a in node.args):
        return None
    sizes, strides, dtype = kind_of(value_of(node))
    if any(kind_of(value_of(a))[:2] != (sizes, strides) for a in node.args):
        return None
    return SingleOp(_torch.op_name(node.target), tuple(placeholders.index(a) for a in node.args), (dtype,))


def _part(call: fx.Node, i: int) -> fx.Node | None:
    return next((user for user in call.users if user.target is operator.getitem and user.args[1] == i), None)
