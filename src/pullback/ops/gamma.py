"""The gamma function's logarithm and its derivatives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pullback.ops.balls import off_poles
from pullback.ops.bounds import KERNEL, Interval, around, centre, either, monotone, where_positive
from pullback.ops.lowering import call
from pullback.ops.record import Given, PointwiseOp, TermOp

_TRIGAMMA_ERROR = 2.0**-30
"""PyTorch's kernel is relatively 5e-10 off at 1: its series ends early."""
_NOT_QUICK = {"mpmath": "quick forms have no such op"}
_PYTORCH = {"lowering": "left to PyTorch's kernel"}


def trigamma(a: Tensor) -> Tensor:
    """Return the derivative of digamma."""
    value: Tensor = torch.special.polygamma(1, a)
    return value


def _lgamma_ball(a: Any) -> Any:
    """Return log|Γ(a)|, by reflection where a is negative: |Γ(a) Γ(1 − a)| = π/|sin(πa)| (DLMF 5.5.3)."""
    if not a < 0:
        return off_poles(a, a.lgamma())
    return off_poles(a, (type(a).pi() / abs(a.sin_pi())).log() - (1 - a).lgamma())


def _digamma_ball(a: Any) -> Any:
    return off_poles(a, a.digamma())


def _trigamma_ball(a: Any) -> Any:
    """Return ψ′(a) = ζ(2, a), Hurwitz' zeta (DLMF 25.11.12); where a is negative, π²/sin²(πa) − ψ′(1 − a) (5.15.6)."""
    two = type(a)(2)
    if not a < 0:
        return off_poles(a, two.zeta(a))
    return off_poles(a, (type(a).pi() / a.sin_pi()) ** 2 - two.zeta(1 - a))


def _lgamma_bounds(a: Interval) -> Interval:
    middle, radius = centre(a)
    pole = (a.low == a.high) & (a.low <= 0) & (a.low == a.low.round())
    # The derivative ψ grows for a > 0, so |ψ| is largest at an end; 1.01 covers the error of its kernel.
    slope = torch.maximum(torch.digamma(a.low).abs(), torch.digamma(a.high).abs())
    off = torch.where(a.low > 0, 1.01 * radius * slope, torch.where(radius == 0, 0.0, torch.inf))
    value = torch.lgamma(middle)
    return around(value - off, value + off, KERNEL, KERNEL, either(a.undefined, pole))


def _polygamma_reading(given: Given) -> str | None:
    return {0: "digamma(self)", 1: "trigamma(self)"}.get(given["n"].value)


OPS = (
    TermOp(
        name="lgamma",
        aten=("lgamma",),
        value=torch.lgamma,
        partials=("digamma(a)",),
        ball=_lgamma_ball,
        bounds=_lgamma_bounds,
        cost=20,
        domain="lgamma: poles at 0 and the negative integers",
        lowering=call("lgamma"),
        empty=_NOT_QUICK,
    ),
    TermOp(
        name="digamma",
        aten=("digamma",),
        value=torch.digamma,
        partials=("trigamma(a)",),
        ball=_digamma_ball,
        bounds=where_positive(monotone(torch.digamma, absolute=KERNEL)),
        cost=20,
        domain="digamma: poles at 0 and the negative integers",
        empty=_PYTORCH | _NOT_QUICK,
    ),
    TermOp(
        name="trigamma",
        value=trigamma,
        ball=_trigamma_ball,
        bounds=where_positive(monotone(trigamma, -1, relative=_TRIGAMMA_ERROR)),
        cost=30,
        spelling="trigamma",
        empty={"partials": "terms have no polygamma of higher order", **_PYTORCH, **_NOT_QUICK},
    ),
    PointwiseOp(
        name="polygamma",
        aten=("polygamma",),
        reading=_polygamma_reading,
        domain="polygamma: poles at 0 and the negative integers",
        empty=_PYTORCH,
    ),
)
