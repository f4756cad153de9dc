"""The logarithm of softmax, and a loss of it, as ops over rows.

log softmax(x) = x − m − log Σ exp(x − m), m = max x. Its vjp is g − exp(y) Σ g for the result y. The g that a loss on
classes k sends back is −s at k and 0 elsewhere, for one number s in each row: so the vjp of both is s exp(y), less s at
k, and g need not be written down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from pullback.kernels.regions import value_of
from pullback.kernels.spelling import Spelling

aten = torch.ops.aten

_MEAN = 1
"""The reduction of a loss to its mean, as ATen has it."""


def _log_softmax(to: Spelling) -> None:
    x, dim, _ = to.args
    top = to.reduced(aten.amax.default, x) if _is_over_rows(to.node, x, dim) else None
    if top is None:
        return
    below = to.call(aten.sub.Tensor, x, top)
    if total := to.reduced(aten.sum.dim_IntList, to.call(aten.exp.default, below)):
        to.replace(to.call(aten.sub.Tensor, below, to.call(aten.log.default, total)))


def _log_softmax_backward(to: Spelling) -> None:
    g, y, dim, _ = to.args
    total = to.reduced(aten.sum.dim_IntList, g) if _is_over_rows(to.node, y, dim) else None
    if total is None:
        return
    if g.target is aten.nll_loss_backward.default and g.args[1] is y and len(g.users) == 2:
        _loss_backward(to, g, y)
    else:
        to.replace(to.call(aten.sub.Tensor, g, to.call(aten.mul.Tensor, to.call(aten.exp.default, y), total)))


def _loss_backward(to: Spelling, loss: fx.Node, y: fx.Node) -> None:
    g, _, k, weight, reduction, ignored, total = loss.args
    size = to.of_rows(y, _cotangent_of_rows, g, k, weight, ignored, total if reduction == _MEAN else None)
    whole = to.call(aten.mul.Tensor, to.call(aten.exp.default, y), size)
    to.replace(to.call(_less_at, whole, k, size, ignored))


def _is_over_rows(node: fx.Node, x: fx.Node, dim: int) -> bool:
    """Whether an op goes over the last dimension, of a known size, of values that it neither widens nor narrows."""
    value = value_of(x)
    if getattr(value, "extents", None) is not None:
        return False
    return bool(value.dim() > 1 and dim % value.dim() == value.dim() - 1 and value.dtype == value_of(node).dtype)


def _cotangent_of_rows(g: Tensor, k: Tensor, weight: Tensor | None, ignored: int, total: Any) -> Tensor:
    """Return s for each row: 0 where the class is `ignored`."""
    k = k.long()  # uint8 as well, which indexes as a mask does
    counts = k != ignored
    size = g if total is None else g / total
    if weight is not None:
        size = size * weight[torch.where(counts, k, 0)]
    return torch.where(counts, size, size.new_zeros(())).unsqueeze(1)


def _less_at(whole: Tensor, k: Tensor, size: Tensor, ignored: int) -> Tensor:
    """Subtract the size of each row at its class, in place: nothing else reads `whole`."""
    k = k.long()
    return whole.scatter_add_(1, torch.where(k != ignored, k, 0).unsqueeze(1), size.neg())


SPELLINGS: Mapping[Any, Callable[[Spelling], None]] = {
    aten._log_softmax.default: _log_softmax,
    aten._log_softmax_backward_data.default: _log_softmax_backward,
}
