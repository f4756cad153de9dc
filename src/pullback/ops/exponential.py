"""Exponential functions, and the sigmoid family, which is made of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pullback.ops.balls import method
from pullback.ops.bounds import monotone
from pullback.ops.lowering import call
from pullback.ops.record import Given, PointwiseOp, TermOp

_DECOMPOSED = "kernels/decompositions.py writes it in e = exp(−|x|), which it shares with others"
_THRESHOLD = 20


def _exp2_ball(a: Any) -> Any:
    return (a * type(a)(2).log()).exp()


def _sigmoid_ball(a: Any) -> Any:
    """Return 1 / (1 + e⁻ᵃ), tight for either sign."""
    if a > 0:
        return 1 / (1 + (-a).exp())
    e = a.exp()
    return e / (1 + e)


def _softplus_ball(a: Any) -> Any:
    """Return log(1 + eᵃ), tight for either sign."""
    return a + (-a).exp().log1p() if a > 0 else a.exp().log1p()


def softplus(a: Tensor) -> Tensor:
    """Return log(1 + eᵃ) without overflow and without PyTorch's threshold."""
    return torch.clamp_min(a, 0) + torch.log1p(torch.exp(-torch.abs(a)))


def _softplus_reading(given: Given) -> str:
    # From the default threshold on, the linear piece is a numerical device and the function a softplus; a lower one is
    # part of the caller's request.
    soft = "softplus(beta*self)/beta"
    threshold = given["threshold"].value
    return soft if threshold >= _THRESHOLD else f"where(beta*self > threshold, self, {soft})"


def softplus_sum(x: Tensor, scaled: Tensor, tail: Tensor, beta: float, threshold: float) -> Tensor:
    """Return softplus(scaled)/beta, scaled = beta x and tail = log(1 + exp(−|scaled|)); x above the threshold."""
    return torch.where(scaled > threshold, x, (scaled.clamp_min(0) + tail) / beta)


def softplus_slope(g: Tensor, slope: Tensor, scaled: Tensor, threshold: float) -> Tensor:
    """Return a cotangent times the slope of a softplus, which is 1 above the threshold."""
    return torch.where(scaled > threshold, g, g * slope)


OPS = (
    TermOp(
        name="exp",
        aten=("exp",),
        value=torch.exp,
        partials=("exp(a)",),
        ball=method("exp"),
        bounds=monotone(torch.exp),
        mpmath="exp",
        cost=4,
        domain="exp: overflows where its argument is large (above 88 in float32)",
        noun="exp_{}",
        lowering=call("exp", short_error=1),
    ),
    TermOp(
        name="exp2",
        aten=("exp2",),
        value=torch.exp2,
        partials=("LN2*exp2(a)",),
        ball=_exp2_ball,
        bounds=monotone(torch.exp2),
        mpmath=lambda mp, a: mp.power(2, a),
        cost=4,
        lowering=call("exp2"),
    ),
    TermOp(
        name="expm1",
        aten=("expm1",),
        value=torch.expm1,
        partials=("exp(a)",),
        ball=method("expm1"),
        bounds=monotone(torch.expm1),
        mpmath="expm1",
        cost=5,
        is_lossy_in_autograd=True,
        noun="expm1_{}",
        lowering=call("expm1"),
    ),
    TermOp(
        name="sigmoid",
        aten=("sigmoid",),
        value=torch.sigmoid,
        partials=("sigmoid(a)*sigmoid(-a)",),  # σ(1 − σ), where 1 − σ(a) cancels for large a
        ball=_sigmoid_ball,
        bounds=monotone(torch.sigmoid),
        mpmath=lambda mp, a: 1 / (1 + mp.exp(-a)),
        cost=6,
        is_lossy_in_autograd=True,
        noun="gate_{}",
        lowering=call("sigmoid", mirrored="mirrored_sigmoid", short_error=1),
    ),
    PointwiseOp(
        name="sigmoid_backward",
        aten=("sigmoid_backward",),
        lowering=call("sigmoid_backward", 2, latency=3),
    ),
    TermOp(
        name="softplus",
        aten=("softplus",),
        reading=_softplus_reading,
        value=softplus,
        partials=("sigmoid(a)",),
        ball=_softplus_ball,
        bounds=monotone(softplus),
        mpmath=lambda mp, a: mp.log1p(mp.exp(a)),
        cost=9,
        spelling="softplus",
        empty={"lowering": _DECOMPOSED},
    ),
    PointwiseOp(
        name="softplus_sum",
        lowering=call("softplus_sum", 5, target=softplus_sum, latency=3),
    ),
    PointwiseOp(
        name="softplus_slope",
        lowering=call("softplus_slope", 4, target=softplus_slope, latency=3),
    ),
    PointwiseOp(name="softplus_backward", aten=("softplus_backward",), empty={"lowering": _DECOMPOSED}),
    PointwiseOp(
        name="log_sigmoid",
        aten=("log_sigmoid", "log_sigmoid_forward"),
        reading="-softplus(-self)",
        empty={"lowering": _DECOMPOSED},
    ),
    PointwiseOp(name="log_sigmoid_backward", aten=("log_sigmoid_backward",), empty={"lowering": _DECOMPOSED}),
    # not max(a, b) + log(1 + exp(−|a − b|)): the kinks of the two cancel in the first derivative only
    PointwiseOp(
        name="logaddexp",
        aten=("logaddexp",),
        reading="where(self > other, self + softplus(other - self), other + softplus(self - other))",
        lowering=call("logaddexp", 2),
    ),
    PointwiseOp(
        name="logaddexp2",
        aten=("logaddexp2",),
        reading=(
            "where(self > other, self + softplus(LN2*(other - self))/LN2, other + softplus(LN2*(self - other))/LN2)"
        ),
        empty={"lowering": "left to PyTorch's kernel"},
    ),
)
