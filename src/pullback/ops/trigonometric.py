"""Circular functions and their inverses."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pullback.ops.balls import line, method
from pullback.ops.bounds import KERNEL, Interval, absolute, around, centre, corners, lipschitz, monotone
from pullback.ops.lowering import call
from pullback.ops.record import PointwiseOp, TermOp

_NO_ATEN_OP = {
    "lowering": "forms with it are computed by PyTorch's kernels of its parts",
    "mpmath": "quick forms have no such op",
}


def sinpi(a: Tensor) -> Tensor:
    """Return sin(πa); a is reduced exactly, so zeros at the integers are exact and large numbers lose no accuracy.

    With n the integer next to a and r = a − n, sin(πa) = (−1)ⁿ sin(πr). The difference is exact: either n is 0, or a
    and n are within a factor of 2 (Sterbenz' lemma). The product πr has two rounding errors, which the sine does not
    amplify: its condition number y cot y is at most 1 for |y| ≤ π/2.
    """
    whole = torch.round(a)
    value = torch.sin((a - whole) * math.pi)
    return torch.where(torch.remainder(whole, 2) == 1, -value, value)


def cospi(a: Tensor) -> Tensor:
    """Return cos(πa), as accurate as `sinpi`.

    cos(πr) = sin(π(1/2 − |r|)), where the difference is exact for |r| ≥ 1/4, and otherwise has a relative error
    of at most a rounding, since it is above 1/4.
    """
    whole = torch.round(a)
    value = torch.sin((0.5 - torch.abs(a - whole)) * math.pi)
    return torch.where(torch.remainder(whole, 2) == 1, -value, value)


def _tan_ball(a: Any) -> Any:
    """Return the tangent; its poles are irrational, so no finite number of digits is one."""
    value = a.tan()
    return line(a) if value.is_nan() and a.is_finite() else value


def _tan_bounds(a: Interval) -> Interval:
    # |tan(m + r) − tan m| = |tan r (1 + tan² m) / (1 − tan m tan r)|. For r (1 + |tan m|) < 0.01 there is
    # no pole between, and it is at most 1.011 r (1 + tan² m).
    middle, radius = centre(a)
    value = torch.tan(middle)
    near = radius * (1 + value.abs()) < 0.01
    off = torch.where(near, 1.03 * radius * (1 + value * value), torch.inf)
    return around(value - off, value + off, KERNEL, 0.0, a.undefined)


def _atan2_ball(a: Any, b: Any) -> Any:
    return type(a).atan2(a, b)


def _atan2_bounds(a: Interval, b: Interval) -> Interval:
    return corners(torch.atan2, a, b, KERNEL, (b.low > 0) | (a.low > 0) | (a.high < 0))


def _beyond_one(a: Interval) -> Tensor:
    return absolute(a).low > 1


OPS = (
    TermOp(
        name="sin",
        aten=("sin",),
        value=torch.sin,
        partials=("cos(a)",),
        ball=method("sin"),
        bounds=lipschitz(torch.sin, 1.0, 1.0),
        mpmath="sin",
        cost=6,
        noun="sin_{}",
        lowering=call("sin"),
    ),
    TermOp(
        name="cos",
        aten=("cos",),
        value=torch.cos,
        partials=("-sin(a)",),
        ball=method("cos"),
        bounds=lipschitz(torch.cos, 1.0, 1.0),
        mpmath="cos",
        cost=6,
        noun="cos_{}",
        lowering=call("cos"),
    ),
    TermOp(
        name="tan",
        aten=("tan",),
        value=torch.tan,
        partials=("1 + tan(a)*tan(a)",),
        ball=_tan_ball,
        bounds=_tan_bounds,
        mpmath="tan",
        cost=7,
        domain="tan: poles at odd multiples of π/2",
        noun="tan_{}",
        lowering=call("tan"),
    ),
    TermOp(
        name="sinpi",
        value=sinpi,
        partials=("PI*cospi(a)",),
        ball=method("sin_pi"),
        bounds=lipschitz(sinpi, 3.15, 1.0),
        cost=9,
        spelling="sinpi",
        empty=_NO_ATEN_OP,
    ),
    TermOp(
        name="cospi",
        value=cospi,
        partials=("-(PI*sinpi(a))",),
        ball=method("cos_pi"),
        bounds=lipschitz(cospi, 3.15, 1.0),
        cost=9,
        spelling="cospi",
        empty=_NO_ATEN_OP,
    ),
    TermOp(
        name="asin",
        aten=("asin",),
        value=torch.asin,
        partials=("1/sqrt((1 - a)*(1 + a))",),  # 1 − a² as a product, of which no factor cancels after a rounding
        ball=method("asin"),
        bounds=monotone(torch.asin, outside=_beyond_one),
        mpmath="asin",
        cost=6,
        is_lossy_in_autograd=True,
        singular=("a - 1", "a + 1"),
        domain="asin: its argument must lie in [−1, 1]; its derivative is infinite at ±1",
        lowering=call("asin"),
    ),
    TermOp(
        name="acos",
        aten=("acos",),
        value=torch.acos,
        partials=("-(1/sqrt((1 - a)*(1 + a)))",),
        ball=method("acos"),
        bounds=monotone(torch.acos, -1, outside=_beyond_one),
        mpmath="acos",
        cost=6,
        is_lossy_in_autograd=True,
        singular=("a - 1", "a + 1"),
        domain="acos: its argument must lie in [−1, 1]; its derivative is infinite at ±1",
        lowering=call("acos"),
    ),
    TermOp(
        name="atan",
        aten=("atan",),
        value=torch.atan,
        partials=("1/(1 + a*a)",),
        ball=method("atan"),
        bounds=monotone(torch.atan),
        mpmath="atan",
        cost=6,
        lowering=call("atan"),
    ),
    TermOp(
        name="atan2",
        arity=2,
        aten=("atan2",),
        value=torch.atan2,
        partials=("b/(a*a + b*b)", "-(a/(a*a + b*b))"),
        ball=_atan2_ball,
        bounds=_atan2_bounds,
        mpmath="atan2",
        cost=8,
        domain="atan2: no derivative where both arguments are 0",
        lowering=call("atan2", 2),
    ),
    PointwiseOp(
        name="sinc",
        aten=("sinc",),
        reading="where(self == 0, 1, sin(PI*self)/(PI*self))",
        empty={"lowering": "left to PyTorch's kernel"},
    ),
)
