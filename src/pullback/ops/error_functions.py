"""The error function and its relatives, and the normal distribution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pullback.ops.balls import LARGE, method
from pullback.ops.bounds import even, monotone
from pullback.ops.lowering import call
from pullback.ops.record import PointwiseOp, TermOp

_NO_ATEN_OP = {"lowering": "forms with it are computed by PyTorch's kernels of its parts"}
_NO_TRITON = {"triton": "libdevice's functions are not measured: left to PyTorch's kernel"}
_NOT_QUICK = {"mpmath": "quick forms have no such op"}


def _erfcx_ball(a: Any) -> Any:
    """Return e^(a²) erfc(a), where that is huge times tiny as U(1/2, 1/2, a²)/√π (DLMF 7.11.5)."""
    if a > LARGE:
        half = type(a)(0.5)
        return (a * a).hypgeom_u(half, half) * type(a).pi().rsqrt()
    return (a * a).exp() * a.erfc()


def _erfc_ball(a: Any) -> Any:
    """Return erfc(a); in its tail, of which arb knows only how small it is, by `erfcx`."""
    return (-a * a).exp() * _erfcx_ball(a) if a > LARGE else a.erfc()


def _gauss_ball(a: Any) -> Any:
    return (-a * a / 2).exp()


def _qgauss_ball(a: Any) -> Any:
    return (-a * a / 4).exp()


def _ndtri_ball(a: Any) -> Any:
    """Return Φ⁻¹(a) = −√2 erfc⁻¹(2a), from Φ(x) = erfc(−x/√2)/2; nan at 0 and 1, where arb has the whole line."""
    value = -type(a)(2).sqrt() * (2 * a).erfcinv()
    return value if value.is_finite() or not a.is_exact() else type(a)("nan")


def gauss(a: Tensor) -> Tensor:
    """Return e^(−a²/2), as accurate as a product of two exponentials: 2.01 ulp are the most measured in float32."""
    return _exp_of_square(a, -0.5)


def qgauss(a: Tensor) -> Tensor:
    """Return e^(−a²/4), as accurate as `gauss`."""
    return _exp_of_square(a, -0.25)


def _exp_of_square(a: Tensor, factor: float) -> Tensor:
    # a² is rounded, and exp multiplies that error by a²/2. With a = h + r, h of half the digits, h² is exact and a² −
    # h² = (a − h)(a + h) is small: e^(ca²) = e^(ch²) e^(c(a − h)(a + h)). The second exponent is at most 2⁻¹¹ ca² in
    # float32, so its rounding errors do not show. Veltkamp's splitting gives h: with C = 2ˢ + 1, h = Ca − (Ca − a) has
    # p − s of p digits, 12 of 24 and 26 of 53, and a − h is exact (Dekker, "A floating-point technique for extending
    # the available precision", Numerische Mathematik 18, 1971). Beyond 10⁶ the result is 0 in every dtype:
    # larger numbers are cut there, since Ca overflows for the largest.
    split = 4097.0 if a.dtype == torch.float32 else 134217729.0
    near = torch.clamp(a, -1e6, 1e6)
    scaled = near * split
    high = scaled - (scaled - near)
    return torch.exp(high * high * factor) * torch.exp((near - high) * (near + high) * factor)


OPS = (
    TermOp(
        name="erf",
        aten=("erf",),
        value=torch.erf,
        partials=("TWO_OVER_SQRTPI*exp(-(a*a))",),  # DLMF 7.10.1
        ball=method("erf"),
        bounds=monotone(torch.erf),
        mpmath="erf",
        cost=6,
        noun="erf_{}",
        lowering=call("erf"),
    ),
    TermOp(
        name="erfc",
        aten=("erfc",),
        value=torch.erfc,
        partials=("-(TWO_OVER_SQRTPI*exp(-(a*a)))",),
        ball=_erfc_ball,
        bounds=monotone(torch.erfc, -1),
        mpmath="erfc",
        cost=8,
        lowering=call("erfc", short_error=4),
    ),
    TermOp(
        name="erfcx",
        aten=("special_erfcx",),
        value=torch.special.erfcx,
        partials=("(2*a)*erfcx(a) - TWO_OVER_SQRTPI",),  # DLMF 7.10.2; of large a the terms cancel
        ball=_erfcx_ball,
        bounds=monotone(torch.special.erfcx, -1),
        cost=10,
        spelling="torch.special.erfcx",
        mpmath=lambda mp, a: mp.exp(a * a) * mp.erfc(a),
        lowering=call("erfcx", in_triton=False, in_16_bits=False),
        empty=_NO_TRITON,
    ),
    TermOp(
        name="gauss",
        value=gauss,
        partials=("-(a*gauss(a))",),
        ball=_gauss_ball,
        bounds=even(monotone(gauss, -1)),
        mpmath=lambda mp, a: mp.exp(-a * a / 2),
        cost=10,
        spelling="gauss",
        empty=_NO_ATEN_OP,
    ),
    TermOp(
        name="qgauss",
        value=qgauss,
        partials=("-0.5*(a*qgauss(a))",),
        ball=_qgauss_ball,
        bounds=even(monotone(qgauss, -1)),
        cost=10,
        spelling="qgauss",
        empty=_NO_ATEN_OP | _NOT_QUICK,
    ),
    PointwiseOp(
        name="log_ndtr",
        aten=("special_log_ndtr",),
        reading="log(0.5*erfc(-(self*SQRT1_2)))",
        lowering=call("log_ndtr", in_triton=False, in_16_bits=False),
        empty=_NO_TRITON,
    ),
    TermOp(
        name="ndtri",
        aten=("special_ndtri",),
        value=torch.special.ndtri,
        partials=("exp(0.5*(ndtri(a)*ndtri(a)))/INV_SQRT_2PI",),  # 1/φ(Φ⁻¹(a))
        ball=_ndtri_ball,
        bounds=monotone(torch.special.ndtri, outside=lambda a: (a.high < 0) | (a.low > 1)),
        mpmath=lambda mp, a: mp.sqrt(2) * mp.erfinv(2 * a - 1),
        cost=14,
        singular=("a", "a - 1"),
        spelling="torch.special.ndtri",
        domain="ndtri: its argument must lie in (0, 1)",
        lowering=call("ndtri", in_triton=False, in_16_bits=False),
        empty=_NO_TRITON,
    ),
)
