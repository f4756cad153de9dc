"""Ops that undo each other, or do nothing at all, as traces of derivatives are full of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

aten = torch.ops.aten
_UNDONE = (aten.t.default, aten.neg.default, aten.flip.default)
"""Ops that are their own inverse."""
_RESHAPED = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


def drop_returns(graph: fx.Graph) -> None:
    """Remove pairs of transpositions and negations, and reshapes and expansions to the same shape."""
    ends = set(graph.output_node().all_input_nodes)
    for node in list(graph.nodes):
        same = _unchanged(node)
        if same is not None and not (node in ends and same.op == "placeholder"):
            node.replace_all_uses_with(same)
            graph.erase_node(node)


def _unchanged(node: fx.Node) -> fx.Node | None:
    """Return an earlier node with the value of this one."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    before: Any = node.args[0]
    if node.target in _UNDONE and before.target is node.target and before.args[1:] == node.args[1:]:
        return before.args[0]  # type: ignore[no-any-return]
    if _is_by_one(node):
        return before  # type: ignore[no-any-return]
    if (
        node.target is aten.transpose.int
        and before.target is aten.transpose.int
        and set(_dims(node)) == set(_dims(before))
    ):
        return before.args[0]  # type: ignore[no-any-return]
    if node.target in (*_RESHAPED, aten.expand.default) and _same_shape(node, before):
        return before  # type: ignore[no-any-return]
    if node.target in _RESHAPED and before.target in _RESHAPED and _same_shape(node, before.args[0]):
        return before.args[0]  # type: ignore[no-any-return]
    return None


def _is_by_one(node: fx.Node) -> bool:
    """Whether a node is a value times or divided by 1."""
    by_one = str(node.target) in ("aten.mul.Tensor", "aten.mul.Scalar", "aten.div.Tensor", "aten.div.Scalar")
    one = node.args[1] if len(node.args) == 2 else None
    return by_one and type(one) in (int, float) and bool(one == 1) and bool(node.meta["val"].is_floating_point())


def _dims(node: fx.Node) -> list[int]:
    dims: int = node.meta["val"].dim()
    places: Any = node.args[1:]
    return [d % dims for d in places]


def _same_shape(a: fx.Node, b: fx.Node) -> bool:
    x, y = a.meta.get("val"), b.meta.get("val")
    if not isinstance(x, Tensor) or not isinstance(y, Tensor) or x.dim() != y.dim():
        return False
    return [str(s) for s in x.shape] == [str(s) for s in y.shape]
