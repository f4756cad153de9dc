"""Functionalisation: some of PyTorch's derivatives write in place to tensors that they have just made."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch


def functionalise(graph: fx.Graph) -> fx.Node | None:
    """Replace in-place ops on tensors that the graph itself made; return the first that has to stay."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.op != "call_function" or not _torch.is_mutable(node.target):
            continue
        target: Any = node.args[0]
        pure = _torch.out_of_place(node.target)
        made_here = target.op == "call_function" and not _torch.is_view(target.target)
        others = [user for user in target.users if user is not node]
        if pure is None or not made_here or not _keeps_dtype(node):
            return node  # type: ignore[no-any-return]
        if any(order[user] > order[node] or _is_view(user) for user in others):
            return node  # type: ignore[no-any-return]
        node.target = pure
        if pure == torch.ops.aten.fill.Scalar and target.target == torch.ops.aten.empty_like.default:
            node.target, node.args = torch.ops.aten.full_like.default, (target.args[0], node.args[1])
            node.kwargs = dict(target.kwargs)
    return None


def _is_view(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is not operator.getitem and _torch.is_view(node.target)


_TRUTHS = frozenset(
    ["logical_and_", "logical_or_", "logical_xor_", "logical_not_", "eq_", "ne_", "lt_", "le_", "gt_", "ge_"]
)


def _keeps_dtype(node: fx.Node) -> bool:
    """Whether the functional variant of an in-place op has the dtype of the tensor that is written to.

    Index and mask arguments do not take part in type promotion with floating-point tensors.
    """
    target: Any = node.args[0]
    own = target.meta["val"].dtype
    dtypes = {value.dtype for a in node.all_input_nodes if isinstance(value := a.meta.get("val"), Tensor)}
    if own != torch.bool and str(node.target).split(".")[1] in _TRUTHS:
        return False
    if own.is_floating_point or own.is_complex:
        return not any(dtype != own and (dtype.is_floating_point or dtype.is_complex) for dtype in dtypes)
    return dtypes == {own} and not any(isinstance(a, float | complex) for a in (*node.args, *node.kwargs.values()))
