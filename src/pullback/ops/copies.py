"""Copies, casts and views, which have the same values, and tensors of one number.

`stable/graphs.py` looks after their dtypes and shapes.
"""

from __future__ import annotations

from pullback.ops.lowering import Lowering, Operands, call
from pullback.ops.record import PointwiseOp, Rounding

_PYTORCH = {"lowering": "left to PyTorch: it depends on the values of another tensor"}

OPS = (
    PointwiseOp(
        name="copy",
        aten=("clone", "alias"),
        reading="self",
        rounding=Rounding.NONE,
        lowering=call("", latency=1),
    ),
    PointwiseOp(
        name="detach",
        aten=("detach",),
        reading="self",
        rounding=Rounding.NONE,
        noun="fixed_{}",
        lowering=call("", latency=1),
    ),
    PointwiseOp(
        name="cast",
        aten=("_to_copy",),
        reading="self",
        rounding=Rounding.NONE,
        noun="wide_{}",
        lowering=Lowering(write=str, operands=Operands.SELECTED, latency=1),
    ),
    PointwiseOp(
        name="view",
        aten=("contiguous", "expand", "lift_fresh", "lift_fresh_copy", "positive"),
        reading="self",
        empty={"lowering": "it computes nothing"},
    ),
    PointwiseOp(name="full", aten=("full", "full_like"), reading="fill_value", fill=lambda args: args[1]),
    PointwiseOp(name="scalar_tensor", aten=("scalar_tensor",), reading="s", fill=lambda args: args[0]),
    PointwiseOp(name="ones", aten=("ones", "ones_like"), reading="1", fill=lambda args: 1.0),
    PointwiseOp(name="zeros", aten=("zeros", "zeros_like"), reading="0", fill=lambda args: 0.0),
    PointwiseOp(name="new_full", aten=("new_full",), reading="fill_value", empty=_PYTORCH),
    PointwiseOp(name="new_ones", aten=("new_ones",), reading="1", empty=_PYTORCH),
    PointwiseOp(name="new_zeros", aten=("new_zeros",), reading="0", empty=_PYTORCH),
)
