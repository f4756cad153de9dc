"""Large results of a graph in memory that is reused by its next result, and by its next run.

Otherwise an allocator may return such memory to the system, to be mapped and cleared again, or keep it in pieces that
are too small for the next result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch

_aten = torch.ops.aten
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
_LARGE = 2**18
"""Bytes from which on a result goes into a workspace."""


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
    places: list[fx.Node] = []
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
            places.append(last)
        slots[free].numel, busy_until[free] = max(slots[free].numel, x.numel()), until
        with graph.inserting_before(node):
            part = graph.call_function(_part, (places[free], x.numel(), list(x.shape)))
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
