"""Powers and roots."""

from __future__ import annotations

import math
from typing import Any

import torch

from pullback.ops.balls import line, method
from pullback.ops.bounds import KERNEL, Interval, absolute, around, corners, either, masked, monotone
from pullback.ops.lowering import Arguments, Lowering, call
from pullback.ops.record import Continuity, Given, PointwiseOp, TermOp


def _hypot_ball(a: Any, b: Any) -> Any:
    return (a * a + b * b).sqrt()


def _hypot_bounds(a: Interval, b: Interval) -> Interval:
    a, b = absolute(a), absolute(b)
    undefined = either(a.undefined, b.undefined)
    return around(torch.hypot(a.low, b.low), torch.hypot(a.high, b.high), KERNEL, 0.0, undefined)


def power_ball(a: Any, b: Any) -> Any:
    """Return aᵇ; of a negative number where b is an integer, which only an exact ball is known to be."""
    value = a**b
    return line(a) if value.is_nan() and a < 0 and b.contains_integer() and not b.is_exact() else value


def _pow_bounds(a: Interval, b: Interval) -> Interval:
    # aᵇ is monotone in each operand for a ≥ 0. For a < 0 it is ±|a|ᵇ, where b is an integer that is known.
    whole = (b.low == b.high) & (b.low == b.low.round())
    valid = (a.low > 0) | ((a.low >= 0) & (b.low > 0)) | ((a.high < 0) & whole)
    size = corners(torch.pow, absolute(a), b, KERNEL, valid)
    flip = (a.high < 0) & whole & (torch.remainder(b.low, 2) == 1)
    undefined = either(size.undefined, (a.high < 0) & (b.low == b.high) & ~whole)
    low, high = torch.where(flip, -size.high, size.low), torch.where(flip, -size.low, size.high)
    return masked(low, high, undefined)


_EXPONENTS = {
    0: "1", 1: "self", 2: "self**2", 3: "self**3", 4: "self**4", -1: "1/self", 0.5: "sqrt(self)", -0.5: "rsqrt(self)",
}  # fmt: skip
_BASES = {("const", 2): "exp2", ("named", "E"): "exp"}
"""Functions that are powers of a constant, by the kind of its term and its value."""


def _pow_reading(given: Given) -> str:
    exponent, base = given["exponent"], given["self"]
    if exponent.op == "const" and exponent.value in _EXPONENTS:
        return _EXPONENTS[exponent.value]
    if (base.op, base.value) in _BASES:
        return f"{_BASES[base.op, base.value]}(exponent)"
    return "pow(self, exponent)"


_KERNELS = {
    0.5: "sqrt({0})",
    1.0: "{0}",
    2.0: "square({0})",
    3.0: "cube({0})",
    -0.5: "rsqrt({0})",
    -1.0: "reciprocal({0})",
    -2.0: "reciprocal(square({0}))",
}
"""Exponents for which PyTorch does not call `pow`."""


def _pow(given: Arguments) -> str:
    base, exponent = given
    return _KERNELS.get(getattr(exponent, "value", math.nan), "pow({0}, {1})").format(base, exponent)


OPS = (
    TermOp(
        name="sqrt",
        aten=("sqrt",),
        value=torch.sqrt,
        partials=("0.5/sqrt(a)",),
        ball=method("sqrt"),
        bounds=monotone(torch.sqrt, outside=lambda a: a.high < 0),
        mpmath="sqrt",
        cost=2,
        singular=("a",),
        domain="sqrt: its argument must not be negative; its derivative is infinite at 0",
        noun="root",
        lowering=call("sqrt", latency=4),
    ),
    TermOp(
        name="rsqrt",
        aten=("rsqrt",),
        value=torch.rsqrt,
        partials=("-0.5*(rsqrt(a)/a)",),
        ball=method("rsqrt"),
        bounds=monotone(torch.rsqrt, -1, outside=lambda a: a.high < 0),
        mpmath=lambda mp, a: 1 / mp.sqrt(a),
        cost=3,
        singular=("a",),
        domain="rsqrt: its argument must be positive",
        noun="inverse_root",
        lowering=call("rsqrt", latency=8),
    ),
    TermOp(
        name="hypot",
        arity=2,
        aten=("hypot",),
        value=torch.hypot,
        partials=("a/hypot(a, b)", "b/hypot(a, b)"),
        ball=_hypot_ball,
        bounds=_hypot_bounds,
        mpmath="hypot",
        cost=4,
        is_commutative=True,
        kink="hypot at 0",
        continuity=Continuity.KINKS,
        lowering=call("hypot", 2),
    ),
    TermOp(
        name="pow",
        arity=2,
        aten=("pow",),
        reading=_pow_reading,
        value=torch.pow,
        partials=("b*pow(a, b - 1)", "pow(a, b)*log(a)"),
        ball=power_ball,
        bounds=_pow_bounds,
        mpmath="power",
        cost=8,
        singular=("a",),
        noun="power",
        lowering=Lowering(write=_pow, overloads=("Tensor_Scalar", "Tensor_Tensor", "Scalar")),
    ),
    PointwiseOp(
        name="square",
        aten=("square",),
        reading="self**2",
        is_method=True,
        empty={"lowering": "PyTorch records it as a power"},
    ),
)
