"""Hyperbolic functions and their inverses."""

from __future__ import annotations

from typing import Any

import torch

from pullback.ops.balls import LARGE, method
from pullback.ops.bounds import absolute, even, monotone
from pullback.ops.lowering import call
from pullback.ops.record import PointwiseOp, TermOp


def _sinh_ball(a: Any) -> Any:
    """Return the hyperbolic sine, without arb's nan where it overflows."""
    return a.sinh() if not abs(a) > LARGE else (a.exp() - (-a).exp()) / 2


def _cosh_ball(a: Any) -> Any:
    """Return the hyperbolic cosine, without arb's nan where it overflows."""
    return a.cosh() if not abs(a) > LARGE else (a.exp() + (-a).exp()) / 2


OPS = (
    TermOp(
        name="sinh",
        aten=("sinh",),
        value=torch.sinh,
        partials=("cosh(a)",),
        ball=_sinh_ball,
        bounds=monotone(torch.sinh),
        mpmath="sinh",
        cost=7,
        noun="sinh_{}",
        lowering=call("sinh"),
    ),
    TermOp(
        name="cosh",
        aten=("cosh",),
        value=torch.cosh,
        partials=("sinh(a)",),
        ball=_cosh_ball,
        bounds=even(monotone(torch.cosh)),
        mpmath="cosh",
        cost=7,
        noun="cosh_{}",
        lowering=call("cosh"),
    ),
    TermOp(
        name="tanh",
        aten=("tanh",),
        value=torch.tanh,
        partials=("1 - tanh(a)*tanh(a)",),
        ball=method("tanh"),
        bounds=monotone(torch.tanh),
        mpmath="tanh",
        cost=6,
        is_lossy_in_autograd=True,
        noun="tanh_{}",
        lowering=call("tanh"),
    ),
    PointwiseOp(name="tanh_backward", aten=("tanh_backward",), lowering=call("tanh_backward", 2, latency=3)),
    TermOp(
        name="asinh",
        aten=("asinh",),
        value=torch.asinh,
        partials=("1/hypot(1, a)",),  # √(1 + a²), where a² may overflow
        ball=method("asinh"),
        bounds=monotone(torch.asinh),
        mpmath="asinh",
        cost=8,
        is_lossy_in_autograd=True,
        lowering=call("asinh"),
    ),
    TermOp(
        name="acosh",
        aten=("acosh",),
        value=torch.acosh,
        partials=("1/(sqrt(a - 1)*sqrt(a + 1))",),  # √(a² − 1), where a² may overflow, and cancels rounded
        ball=method("acosh"),
        bounds=monotone(torch.acosh, outside=lambda a: a.high < 1),
        mpmath="acosh",
        cost=8,
        is_lossy_in_autograd=True,
        singular=("a - 1", "a + 1"),
        domain="acosh: its argument must be at least 1",
        lowering=call("acosh"),
    ),
    TermOp(
        name="atanh",
        aten=("atanh",),
        value=torch.atanh,
        partials=("1/((1 - a)*(1 + a))",),  # 1 − a², whose square would be rounded before it cancels
        ball=method("atanh"),
        bounds=monotone(torch.atanh, outside=lambda a: absolute(a).low > 1),
        mpmath="atanh",
        cost=8,
        is_lossy_in_autograd=True,
        singular=("a - 1", "a + 1"),
        domain="atanh: its argument must lie in (−1, 1)",
        lowering=call("atanh"),
    ),
)
