"""Rounding to integers."""

from __future__ import annotations

import torch

from pullback.ops.arithmetic import truncated
from pullback.ops.balls import method
from pullback.ops.bounds import exact
from pullback.ops.lowering import call
from pullback.ops.record import Continuity, Given, PointwiseOp, Rounding, TermOp

_NOT_QUICK = {"mpmath": "quick forms with it are not disputed"}


def _round_reading(given: Given) -> str | None:
    """Return the nearest integer, of two the even one.

    At a tie x = n + 1/2 it is 2 ⌊x/2 + 1/2⌋: x/2 + 1/2 = n/2 + 3/4, whose floor is n/2 for even n and (n + 1)/2 for
    odd.
    """
    tie = "where(self - floor(self) == 0.5, 2*floor(0.5*self + 0.5), floor(self + 0.5))"
    return None if "decimals" in given else tie


OPS = (
    TermOp(
        name="floor",
        aten=("floor",),
        value=torch.floor,
        partials=("0",),
        ball=method("floor"),
        bounds=exact(torch.floor),
        kink="floor at integers (0 elsewhere)",
        continuity=Continuity.STEPS,
        rounding=Rounding.NONE,
        lowering=call("floor", latency=3),
        empty=_NOT_QUICK,
    ),
    TermOp(
        name="ceil",
        aten=("ceil",),
        value=torch.ceil,
        partials=("0",),
        ball=method("ceil"),
        bounds=exact(torch.ceil),
        kink="ceil at integers (0 elsewhere)",
        continuity=Continuity.STEPS,
        rounding=Rounding.NONE,
        lowering=call("ceil", latency=3),
        empty=_NOT_QUICK,
    ),
    PointwiseOp(
        name="trunc",
        aten=("trunc",),
        reading=truncated("self"),
        kink="trunc at integers (0 elsewhere)",
        continuity=Continuity.STEPS,
        rounding=Rounding.NONE,
        lowering=call("trunc", latency=3),
    ),
    PointwiseOp(
        name="round",
        aten=("round",),
        reading=_round_reading,
        kink="round at half-integers (0 elsewhere)",
        continuity=Continuity.STEPS,
        rounding=Rounding.NONE,
        lowering=call("round", plain=True, latency=3),
    ),
    PointwiseOp(
        name="frac",
        aten=("frac",),
        reading=f"self - {truncated('self')}",
        kink="frac at integers, where it jumps",
        continuity=Continuity.JUMPS,
        lowering=call("frac", latency=3),
    ),
)
