"""Memory of large results: written over an operand that nothing else reads, or kept in a workspace for the next run.

Either avoids mapping new memory, which costs as much as a pass over it. The last reader of a value may overwrite values
that the graph itself computed, and inputs that the caller gives up.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
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
"""Bytes from which either pays: an allocator has smaller memory at hand."""


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
        module: a graph with our kernels.
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


_INTO = {
    _aten.mm.default: (_aten.mm.out, "out"),
    _aten.bmm.default: (_aten.bmm.out, "out"),
    _aten.addmm.default: (_aten.addmm.out, "out"),
    _aten._softmax.default: (_aten._softmax.out, "out"),
    _aten._log_softmax.default: (_aten._log_softmax.out, "out"),
    _aten._softmax_backward_data.default: (_aten._softmax_backward_data.out, "grad_input"),
    _aten._log_softmax_backward_data.default: (_aten._log_softmax_backward_data.out, "out"),
    _aten.nll_loss_backward.default: (_aten.nll_loss_backward.grad_input, "grad_input"),
}
"""Ops that can write to given memory, and the keyword that takes it."""


@dataclass(slots=True)
class Slot:
    """Memory for results that are not needed at the same time."""

    numel: int
    dtype: torch.dtype
    device: torch.device

    def empty(self) -> Tensor:
        """Return such memory."""
        return torch.empty(self.numel, dtype=self.dtype, device=self.device)


def with_workspace(graph: fx.Graph) -> list[Slot]:
    """Have a graph write its large results to slots, which it takes after its other inputs; return these."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    slots: list[Slot] = []
    buffers: list[fx.Node] = []
    busy_until: list[int] = []
    last = graph.find_nodes(op="placeholder")[-1]
    for node in list(graph.nodes):
        until = _last_use(node, order) if _is_large(node) else None
        if until is None:
            continue
        x = _torch.traced_value(node)
        fits = [i for i, s in enumerate(slots) if (s.dtype, s.device) == (x.dtype, x.device)]
        free = next((i for i in fits if busy_until[i] < order[node]), None)
        if free is None:
            free = len(slots)
            slots.append(Slot(0, x.dtype, x.device))
            busy_until.append(0)
            with graph.inserting_after(last):
                last = graph.placeholder("slot")
            buffers.append(last)
        slots[free].numel, busy_until[free] = max(slots[free].numel, x.numel()), until
        with graph.inserting_before(node):
            part = graph.call_function(_part, (buffers[free], x.numel(), list(x.shape)))
        node.target, by = _INTO[node.target]
        node.kwargs = {**node.kwargs, by: part}
    return slots


def _part(slot: Tensor, numel: int, shape: list[int]) -> Tensor:
    return slot[:numel].view(shape)


def _is_large(node: fx.Node) -> bool:
    value: Any = node.meta.get("val")
    if node.target not in _INTO or not isinstance(value, Tensor) or not value.is_contiguous():
        return False
    return math.prod(value.shape) * value.element_size() >= _LARGE


def _last_use(node: fx.Node, order: dict[fx.Node, int]) -> int | None:
    """Return the place in the graph after which nothing reads a result, nor a view of it; `None` if it is returned."""
    until, stack = 0, [node]
    while stack:
        for user in stack.pop().users:
            if user.op == "output":
                return None
            until = max(until, order[user])
            if _torch.is_view(user.target):
                stack.append(user)
    return until
