"""A formula with stable forms in place of its pointwise parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from pullback.stable.parts import Cut, Part
from pullback.stable.recording import function_of

Function = Callable[..., Tensor]


def replaced(cut: Cut, forms: Mapping[Part, Function], dtype: torch.dtype) -> Callable[..., Any]:
    """Return the formula with some of its parts computed by other functions, for tensors of a dtype."""
    by_root = {part.root: part for part in forms}
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    for node in cut.graph.nodes:
        part = by_root.get(node)
        if part is None:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        else:
            function = _where_meant(forms[part], part.function, dtype)
            copies[node] = graph.call_function(function, tuple(copies[n] for n in part.inputs))
    for node in reversed(cut.pointwise):  # nodes used by replaced parts only
        if not copies[node].users:
            graph.erase_node(copies[node])
    return function_of(graph)


def _where_meant(form: Function, written: Function, dtype: torch.dtype) -> Function:
    """Return a form for tensors of its dtype; for other arguments it runs the part as written.

    Inside a formula there are other arguments: integers, sizes, widened values. A form need not read all inputs that
    its result is broadcast from.
    """

    def part(*xs: Any) -> Tensor:
        for x in xs:
            if not isinstance(x, Tensor) or x.dtype != dtype or x.device.type != "cpu":
                return written(*xs)
        return form(*xs).expand(torch.broadcast_tensors(*xs)[0].shape)

    return part
