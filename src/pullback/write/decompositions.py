"""Decompositions of fused ops into readable ones: PyTorch's backward ops, and ops with several results.

PyTorch's own decompositions are used where they read well; those below replace the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pullback import _torch

aten = torch.ops.aten


def _sigmoid_backward(g: Tensor, out: Tensor) -> Tensor:
    return g * (out * (1 - out))


def _tanh_backward(g: Tensor, out: Tensor) -> Tensor:
    return g * (1 - out * out)


def _silu_backward(g: Tensor, x: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    return g * (gate * (1 + x * (1 - gate)))


def _softplus_backward(g: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    scaled = x * beta
    return torch.where(scaled > threshold, g, g * torch.sigmoid(scaled))


def _log_sigmoid_backward(g: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    return g * torch.sigmoid(-x)


def _threshold_backward(g: Tensor, x: Tensor, threshold: float) -> Tensor:
    return torch.where(x > threshold, g, 0.0)


def _softmax_backward(g: Tensor, out: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    return (out * (g - (g * out).sum(dim, keepdim=True))).to(dtype)


def _log_softmax_backward(g: Tensor, out: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    return (g - torch.exp(out) * g.sum(dim, keepdim=True)).to(dtype)


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(-len(shape), 0))
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    scale = torch.rsqrt((centred * centred).mean(dims, keepdim=True) + eps)
    out = centred * scale
    out = out if weight is None else out * weight
    return out if bias is None else out + bias, mean, scale


def _select_backward(g: Tensor, sizes: list[int], dim: int, index: int) -> Tensor:
    return torch.select_scatter(g.new_zeros(sizes), g, dim, index)


def _slice_backward(g: Tensor, sizes: list[int], dim: int, start: int, end: int, step: int) -> Tensor:
    return torch.slice_scatter(g.new_zeros(sizes), g, dim, start, min(end, sizes[dim]), step)


# Not in the registry: the texts of derivatives are wanted here alone, and half of the ops are not pointwise.
_READABLE: dict[Any, Callable[..., Any]] = {
    aten.sigmoid_backward.default: _sigmoid_backward,
    aten.tanh_backward.default: _tanh_backward,
    aten.silu_backward.default: _silu_backward,
    aten.softplus_backward.default: _softplus_backward,
    aten.log_sigmoid_backward.default: _log_sigmoid_backward,
    aten.threshold_backward.default: _threshold_backward,
    aten._softmax_backward_data.default: _softmax_backward,
    aten._log_softmax_backward_data.default: _log_softmax_backward,
    aten.native_layer_norm.default: _layer_norm,
    aten.select_backward.default: _select_backward,
    aten.slice_backward.default: _slice_backward,
}
_WORDS = """
    native_group_norm native_batch_norm nll_loss_forward nll_loss2d_forward addcmul addcdiv lerp std_mean var_mean
    addr huber_loss smooth_l1_loss mse_loss binary_cross_entropy soft_margin_loss _prelu_kernel _fused_rms_norm
"""
_FUSED = frozenset(_WORDS.split())
"""Further ops that PyTorch's decompositions are used for, beside those named `backward`."""


def _table() -> dict[Any, Callable[..., Any]]:
    known = _torch.decompositions()
    chosen = [name for name in known if name in _FUSED or "backward" in name]
    return {op: made for name in chosen for op, made in known[name]} | _READABLE


DECOMPOSITIONS = _table()
"""Decompositions by op: functions of the same arguments."""
