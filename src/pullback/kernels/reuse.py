"""Kernels that write a result over an operand that nothing else reads: this avoids mapping new memory.

The last reader may overwrite values that the graph itself computed, and inputs that the caller gives up.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, fx

from pullback.kernels.regions import value_of

_aten = torch.ops.aten
_FRESH = frozenset(
    [
        _aten.mm.default,
        _aten.bmm.default,
        _aten.addmm.default,
        _aten.baddbmm.default,
        _aten.convolution.default,
        _aten._softmax.default,
        _aten._log_softmax.default,
    ]
)
"""Ops whose result has separate memory; so have the results of kernels."""
_VIEWS = (_aten.view.default, _aten._unsafe_view.default)
_LARGE = 2**18
"""Bytes from which on it is worth it: an allocator has smaller memory at hand."""


def is_fresh(node: fx.Node) -> bool:
    """Whether an op of the graph has allocated a value's memory for that value alone."""
    source = node.all_input_nodes[0] if node.all_input_nodes else None
    if node.target in _VIEWS and source is not None:
        return len(source.users) == 1 and is_fresh(source)
    made_by = source if node.target is operator.getitem and source is not None else node
    return node.target in _FRESH or hasattr(made_by.target, "kernel")


def reusing(module: fx.GraphModule, given: Collection[str] = ()) -> fx.GraphModule | None:
    """Return a graph whose kernels overwrite operands without another reader; `None` if there are none.

    Args:
        module: with kernels of ours.
        given: names of placeholders that may be overwritten, too.
    """
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, made))
    changed = False
    for node in graph.nodes:
        kernel: Any = getattr(node.target, "kernel", None)
        taken: dict[int, int] = {}
        for output, i in sorted(kernel.over) if kernel is not None else ():
            if output not in taken and i not in taken.values() and _may_go(node.args[i], node, given):
                taken[output] = i
        if taken:
            node.target, changed = kernel.writing_over(taken), True
    return fx.GraphModule(module, graph) if changed else None


def _may_go(node: Any, reader: fx.Node, given: Collection[str]) -> bool:
    """Whether a value is large, and only one node reads it."""
    value = value_of(node)
    if set(node.users) != {reader} or not isinstance(value, Tensor):
        return False
    is_large = math.prod(value.shape) * value.element_size() >= _LARGE
    return is_large and (is_fresh(node) or (node.op == "placeholder" and node.name in given))
