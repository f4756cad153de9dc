"""Graphs that consist of one kernel or one op, on tensors of one layout."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pullback import _torch
from pullback.graph.extents import kind_of
from pullback.kernels.native import Kernel, is_kernel
from pullback.kernels.regions import is_ours, value_of


@dataclass(frozen=True, slots=True)
class Single:
    """The only kernel of a graph.

    Attributes:
        kernel: the function to call.
        reads: for each tensor that it reads, the placeholder of the graph.
        writes: for each tensor that it writes, the result of the graph.
    """

    kernel: Kernel
    reads: tuple[int, ...]
    writes: tuple[int, ...]

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Dtypes of its outputs."""
        return tuple(dtype for _, dtype in self.kernel.outputs)


def single(module: fx.GraphModule) -> Single | None:
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
    return Single(kernel, reads, tuple(list(results).index(node) for node in written))


@dataclass(frozen=True, slots=True)
class LoneOp:
    """The only op of a graph, a pointwise op of PyTorch on tensors of one layout.

    Attributes:
        name: of the op, with its overload.
        reads: for each tensor that it reads, the placeholder of the graph.
        dtypes: of its one output.
        writes: the result of the graph, always the first.
    """

    name: str
    reads: tuple[int, ...]
    dtypes: tuple[torch.dtype]
    writes: tuple[int] = (0,)


def lone_op(module: fx.GraphModule) -> LoneOp | None:
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
    return LoneOp(_torch.op_name(node.target), tuple(placeholders.index(a) for a in node.args), (dtype,))


def _part(call: fx.Node, i: int) -> fx.Node | None:
    return next((user for user in call.users if user.target is operator.getitem and user.args[1] == i), None)
