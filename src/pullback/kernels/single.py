"""Graphs that are one kernel and nothing else, on tensors that all lie in memory alike."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pullback.kernels.native import Kernel, is_kernel


@dataclass(frozen=True, slots=True)
class Single:
    """The kernel that a graph is.

    Attributes:
        kernel: what is called.
        reads: for each tensor that it reads, which placeholder of the graph that is.
        writes: for each tensor that it writes, which result of the graph that is.
    """

    kernel: Kernel
    reads: tuple[int, ...]
    writes: tuple[int, ...]

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Of what it writes."""
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


def _part(call: fx.Node, i: int) -> fx.Node | None:
    return next((user for user in call.users if user.target is operator.getitem and user.args[1] == i), None)
