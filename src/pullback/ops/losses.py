"""Losses of an element: pointwise without a reduction and without weights."""

from __future__ import annotations

from collections.abc import Callable

from pullback.ops.record import Given, PointwiseOp

_PYTORCH = {"lowering": "left to PyTorch's kernel, which reduces as well"}


def _unreduced(text: str) -> Callable[[Given], str | None]:
    """Return the reading of a loss: a term without a reduction and without weights, else none."""

    def reading(given: Given) -> str | None:
        weighted = given.get("weight") is not None or given.get("pos_weight") is not None
        reduction = given["reduction"].value
        return None if weighted or reduction != 0 else text

    return reading


OPS = (
    PointwiseOp(
        name="binary_cross_entropy_with_logits",
        aten=("binary_cross_entropy_with_logits",),
        reading=_unreduced("(1 - target)*self + softplus(-self)"),
        empty=_PYTORCH,
    ),
    PointwiseOp(name="mse_loss", aten=("mse_loss",), reading=_unreduced("(self - target)**2"), empty=_PYTORCH),
    PointwiseOp(
        name="smooth_l1_loss",
        aten=("smooth_l1_loss",),
        reading=_unreduced(
            "where(abs(self - target) < beta, 0.5*(self - target)**2/beta, abs(self - target) - 0.5*beta)"
        ),
        empty=_PYTORCH,
    ),
    PointwiseOp(
        name="huber_loss",
        aten=("huber_loss",),
        reading=_unreduced(
            "where(abs(self - target) <= delta, 0.5*(self - target)**2, delta*(abs(self - target) - 0.5*delta))"
        ),
        empty=_PYTORCH,
    ),
    PointwiseOp(
        name="soft_margin_loss",
        aten=("soft_margin_loss",),
        reading=_unreduced("softplus(-(target*self))"),
        empty=_PYTORCH,
    ),
)
