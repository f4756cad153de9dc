"""Modified Bessel functions of the first kind, and the same times e^(−|x|).

The derivatives are I₀′ = I₁ (DLMF 10.29.3) and I₁′ = I₀ − I₁/x (10.29.2), whose limit at 0 is 1/2, since I₁ ≈ x/2. The
scaled functions e^(−|x|) I(x) have the derivative e^(−|x|) I′(x) − sign(x) e^(−|x|) I(x): i0e has a kink at 0, and i1e
a jump of its second derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pullback.ops.arithmetic import sgn_ball
from pullback.ops.bounds import Interval, even, lipschitz, monotone
from pullback.ops.lowering import call
from pullback.ops.record import Continuity, TermOp

_NO_TRITON = {"triton": "libdevice has no scaled functions, and its others are not measured"}


def _ball(order: int, scaled: bool = False) -> Callable[[Any], Any]:
    """Return the enclosure by Arb, whose scaled functions have the factor e^(−x)."""

    def ball(a: Any) -> Any:
        if not scaled:
            return a.bessel_i(type(a)(order))
        value = abs(a).bessel_i(type(a)(order), scaled=True)
        return value * sgn_ball(a) if order else value

    return ball


def _i1e_bounds(a: Interval) -> Interval:
    # It grows between ∓1.5451, with a slope of at most 1/2 and up to 0.2191, and falls beyond.
    falls = (a.low >= 1.6) | (a.high <= -1.6)
    near = lipschitz(torch.special.i1e, 0.5, 0.22)(a)
    far = monotone(torch.special.i1e, -1)(a)
    return Interval(torch.where(falls, far.low, near.low), torch.where(falls, far.high, near.high), a.undefined)


OPS = (
    TermOp(
        name="i0",
        aten=("i0",),
        value=torch.special.i0,
        partials=("i1(a)",),
        ball=_ball(0),
        bounds=even(monotone(torch.special.i0)),
        mpmath=lambda mp, a: mp.besseli(0, a),
        cost=12,
        spelling="torch.special.i0",
        domain="i0: overflows where its argument is large (above 91 in float32)",
        lowering=call("i0", in_triton=False),
        empty=_NO_TRITON,
    ),
    TermOp(
        name="i0e",
        aten=("special_i0e",),
        value=torch.special.i0e,
        partials=("i1e(a) - sgn(a)*i0e(a)",),
        ball=_ball(0, scaled=True),
        bounds=even(monotone(torch.special.i0e, -1)),
        mpmath=lambda mp, a: mp.exp(-abs(a)) * mp.besseli(0, a),
        cost=12,
        spelling="torch.special.i0e",
        kink="i0e at 0",
        continuity=Continuity.KINKS,
        lowering=call("i0e", in_triton=False),
        empty=_NO_TRITON,
    ),
    TermOp(
        name="i1",
        aten=("special_i1",),
        value=torch.special.i1,
        partials=("where(a == 0, 0.5, i0(a) - i1(a)/a)",),
        ball=_ball(1),
        bounds=monotone(torch.special.i1),
        mpmath=lambda mp, a: mp.besseli(1, a),
        cost=12,
        spelling="torch.special.i1",
        domain="i1: overflows where its argument is large (above 91 in float32)",
        lowering=call("i1", in_triton=False),
        empty=_NO_TRITON,
    ),
    TermOp(
        name="i1e",
        aten=("special_i1e",),
        value=torch.special.i1e,
        # e^(−|x|) (I₀ − I₁/x) − sgn(x) e^(−|x|) I₁
        partials=("where(a == 0, 0.5, i0e(a) - i1e(a)*(sgn(a) + 1/a))",),
        ball=_ball(1, scaled=True),
        bounds=_i1e_bounds,
        mpmath=lambda mp, a: mp.exp(-abs(a)) * mp.besseli(1, a),
        cost=12,
        is_piecewise=True,
        spelling="torch.special.i1e",
        kink="i1e at 0, where its second derivative jumps",
        lowering=call("i1e", in_triton=False),
        empty=_NO_TRITON,
    ),
)
