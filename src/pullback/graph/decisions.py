"""Discontinuous ops, and the values that may reach them.

A comparison depends on the last bit of its operands: the derivative of `amax` compares each element with the maximum,
and divides 0 by 0 if none is equal. So a backward must see bit-identical operands to those of the forward. They are
saved, or the mask is, or they are recomputed by ops with one correct result. In 16 bits, a kernel may leave results
unrounded between ops; those that feed a decision are rounded, as PyTorch's kernels do.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.dtypes import is_continuous
from pullback.graph.trace import op_name
from pullback.ops.record import Continuity, Rounding
from pullback.ops.registry import BY_ATEN

_ROUNDED = "rounded"
"""Key of `fx.Node.meta`: the result of the op is rounded to its dtype."""


def _names(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


# Ops without a record: reductions, matrix products, ops that move elements, and derivatives.

_JUMPING = _names("angle copysign frexp nextafter")
"""Discontinuous ops that PyTorch tags as pointwise."""

_KINKED = _names("amax amin aminmax max min")
"""Continuous ops whose derivative is not."""

_CONTINUOUS = _names(
    """
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _fused_rms_norm _fused_rms_norm_backward _log_softmax
    _log_softmax_backward_data _softmax _softmax_backward_data _unsafe_index addbmm addmm addmv addr
    avg_pool1d avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward baddbmm binary_cross_entropy_backward
    bmm cat constant_pad_nd convolution convolution_backward cumprod cumsum dot empty_like flip gather glu
    glu_backward huber_loss_backward index index_add index_copy index_put index_select kl_div linalg_vector_norm
    logcumsumexp logsumexp mean mm mse_loss_backward mv native_batch_norm native_batch_norm_backward
    native_group_norm native_group_norm_backward native_layer_norm native_layer_norm_backward new_empty
    new_empty_strided nll_loss_backward nll_loss_forward prod repeat roll scatter scatter_add select_backward
    select_scatter slice_backward slice_scatter smooth_l1_loss_backward stack std sum trace tril triu
    unfold_backward var vdot
    """
)
"""Ops without that tag that are continuous in their operands, or do not read them; other ops may not be."""


def is_cheap(node: fx.Node) -> bool:
    """Whether recomputing a node costs about as much as reading its result."""
    if node.target is operator.getitem:
        return is_cheap(node.all_input_nodes[0])
    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags or node.target in _UNTAGGED or _torch.is_view(node.target)


_FILLING = frozenset(name for name, op in BY_ATEN.items() if op.fill is not None)
_UNTAGGED = frozenset(
    getattr(torch.ops.aten, name).default for name in ("_to_copy", "clone", "log_sigmoid_forward", *_FILLING)
)
"""Cheap ops without a tag in PyTorch."""


def _continuity(node: fx.Node) -> Continuity | None:
    """Return the continuity of an op; `None` if it is not known."""
    name = op_name(node)
    if name in BY_ATEN:
        return Continuity.JUMPS if "rounding_mode" in node.kwargs else BY_ATEN[name].continuity
    if name in _JUMPING:
        return Continuity.JUMPS
    if name in _KINKED:
        return Continuity.KINKS
    return Continuity.SMOOTH if name in _CONTINUOUS or is_cheap(node) else None


def _rounding(node: fx.Node) -> Rounding:
    op = BY_ATEN.get(op_name(node))
    return Rounding.FREE if op is None else op.rounding


def decides(node: fx.Node, by: fx.Node) -> bool:
    """Whether an op may be discontinuous in one of its operands."""
    if not _is_continuous(by) or node.target is operator.getitem or _torch.is_view(node.target):
        return False
    return _continuity(node) in (None, Continuity.JUMPS, Continuity.STEPS) or not _is_continuous(node)


def is_exact(node: fx.Node) -> bool:
    """Whether an op on real numbers has one right result, and so the same bits in PyTorch's kernels as in ours."""
    match _rounding(node):
        case Rounding.CORRECT:  # a factor is fused with a sum
            return len(node.args) < 3 and not node.kwargs.keys() & {"alpha", "rounding_mode"}
        case Rounding.NONE:
            return "decimals" not in node.kwargs
    return False


def is_reproducible(node: fx.Node) -> bool:
    """Whether all kernels give the same bits for the same operands: a value that is computed again is the same."""
    if node.target is operator.getitem or _torch.is_view(node.target) or op_name(node) in _FILLING:
        return True
    # IEEE 754 rounds +, −, ×, ÷ and √ correctly, so each has one result. Our kernels for the CPU are compiled without
    # the contraction of a · b + c to one rounding; compilers for a GPU contract. In 16 bits a kernel computes in
    # float32, so the result is unique only once it is rounded.
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.is_complex() or not is_exact(node):
        return False
    if _rounding(node) is Rounding.NONE or not value.is_floating_point():
        return True
    return value.device.type == "cpu" and (value.dtype.itemsize > 2 or is_rounded(node))


def is_rounded(node: fx.Node) -> bool:
    """Whether the result of an op of 16 bits is rounded before anything reads it."""
    return _ROUNDED in node.meta


def round_before_choices(graph: fx.Graph, results: Iterable[Any]) -> None:
    """Round 16-bit values that feed a decision, a kink (whose derivative is a decision), or a wider dtype.

    Ancestors of `results` are rounded only for decisions among these ancestors: outputs then have the same bits with
    and without a derivative.
    """
    # An unrounded value within half an ulp of a threshold may lie on its other side, so that a mask of the backward
    # would not be that of the forward.
    ahead = ancestors(results)
    for part in (ahead, set(graph.nodes) - ahead):
        for node in part & ancestors(a for choice in part if _selects(choice) for a in choice.all_input_nodes):
            value = node.meta.get("val")
            if isinstance(value, Tensor) and value.is_floating_point() and value.dtype.itemsize == 2:
                node.meta[_ROUNDED] = True


def ancestors(nodes: Iterable[Any]) -> set[fx.Node]:
    """Return some nodes and their ancestors, placeholders excluded."""
    found: set[fx.Node] = set()
    stack = [node for node in nodes if isinstance(node, fx.Node)]
    while stack:
        node = stack.pop()
        if node not in found and node.op != "placeholder":
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found


def _selects(node: fx.Node) -> bool:
    """Whether an op is discontinuous, or its derivative, or makes more of 16 bits, which show the rounding."""
    if node.op != "call_function":
        return False
    if _continuity(node) is Continuity.KINKS or any(decides(node, a) for a in node.all_input_nodes):
        return True
    return _itemsize(node) > 2 and any(_itemsize(a) == 2 for a in node.all_input_nodes)  # a cast, or a promotion


def _itemsize(node: fx.Node) -> int:
    value = node.meta.get("val")
    return value.dtype.itemsize if isinstance(value, Tensor) and is_continuous(value.dtype) else 0


def _is_continuous(node: fx.Node) -> bool:
    """Whether a node has numbers with derivatives; several results count as such."""
    value = node.meta.get("val")
    return not isinstance(value, Tensor) or is_continuous(value.dtype)
