"""Arithmetic."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from pullback.ops.bounds import ROUNDING, Interval, absolute, around, corners, either, exact
from pullback.ops.lowering import Arguments, Lowering, Number, call, infix
from pullback.ops.record import Continuity, Given, PointwiseOp, Rounding, TermOp

_PYTORCH = {"lowering": "left to PyTorch's kernel"}


def truncated(text: str) -> str:
    """Return the text of a term rounded towards zero."""
    return f"where({text} < 0, ceil({text}), floor({text}))"


def sgn_ball(a: Any) -> Any:
    """Return the sign: 0 at 0, and [−1, 1] where a ball does not decide it."""
    one = type(a)(1)
    if a > 0:
        return one
    if a < 0:
        return -one
    return type(a)(0) if a == 0 else type(a)(0, 1)


def _neg_bounds(a: Interval) -> Interval:
    return Interval(-a.high, -a.low, a.undefined)


def _add_bounds(a: Interval, b: Interval) -> Interval:
    return around(a.low + b.low, a.high + b.high, ROUNDING, 0.0, either(a.undefined, b.undefined))


def _sub_bounds(a: Interval, b: Interval) -> Interval:
    return _add_bounds(a, _neg_bounds(b))


def _mul_bounds(a: Interval, b: Interval) -> Interval:
    if a.low is a.high and b.low is b.high:
        product = a.low * b.low
        return around(product, product, ROUNDING, 0.0, either(a.undefined, b.undefined))
    return corners(torch.mul, a, b, ROUNDING)


def _div_bounds(a: Interval, b: Interval) -> Interval:
    return corners(torch.div, a, b, ROUNDING, (b.low > 0) | (b.high < 0))


def _div_reading(given: Given) -> str | None:
    mode = given.get("rounding_mode")
    return {None: "self/other", "floor": "floor(self/other)", "trunc": truncated("self/other")}.get(mode)


def _scaled_sum(sign: str) -> Callable[[Arguments], str]:
    """Return the writer of a ± alpha b, fused into an fma as PyTorch does."""

    def write(given: Arguments) -> str:
        a, b, *alpha = given
        if not alpha or alpha[0].value == 1:
            return f"{a} {sign} {b}"
        return f"fma({Number(alpha[0].value * (1 if sign == '+' else -1))}, {b}, {a})"

    return write


def _reversed_difference(given: Arguments) -> str:
    return _scaled_sum("-")([given[1], given[0], *given[2:]])


def _addcmul(given: Arguments) -> str:
    a, b, c, value = [*given, Number(1.0)][:4]
    return f"fma({value} * {b}, {c}, {a})"


def _addcdiv(given: Arguments) -> str:
    a, b, c, value = [*given, Number(1.0)][:4]
    return f"{a} + div({value} * {b}, {c})"


_OVERLOADS = ("Tensor", "Scalar")

OPS = (
    TermOp(
        name="add",
        arity=2,
        aten=("add",),
        reading="self + alpha*other",
        value=torch.add,
        partials=("1", "1"),
        ball=operator.add,
        bounds=_add_bounds,
        mpmath=lambda mp, a, b: a + b,
        is_commutative=True,
        symbol="+",
        rounding=Rounding.CORRECT,
        noun="total",
        lowering=Lowering(write=_scaled_sum("+"), overloads=_OVERLOADS, keywords=("alpha",), latency=1),
    ),
    TermOp(
        name="sub",
        arity=2,
        aten=("sub",),
        reading="self - alpha*other",
        value=torch.sub,
        partials=("1", "-1"),
        ball=operator.sub,
        bounds=_sub_bounds,
        mpmath=lambda mp, a, b: a - b,
        symbol="-",
        rounding=Rounding.CORRECT,
        noun="difference",
        lowering=Lowering(write=_scaled_sum("-"), overloads=_OVERLOADS, keywords=("alpha",), latency=1),
    ),
    PointwiseOp(
        name="rsub",
        aten=("rsub",),
        reading="other - alpha*self",
        rounding=Rounding.CORRECT,
        noun="rest",
        lowering=Lowering(write=_reversed_difference, overloads=("Scalar",)),
    ),
    TermOp(
        name="mul",
        arity=2,
        aten=("mul",),
        reading="self*other",
        value=torch.mul,
        partials=("b", "a"),
        ball=operator.mul,
        bounds=_mul_bounds,
        mpmath=lambda mp, a, b: a * b,
        is_commutative=True,
        symbol="*",
        rounding=Rounding.CORRECT,
        noun="product",
        lowering=infix("*", overloads=_OVERLOADS, latency=1),
    ),
    TermOp(
        name="div",
        arity=2,
        aten=("div",),
        reading=_div_reading,
        value=torch.div,
        partials=("1/b", "-((a/b)/b)"),  # −a/b², where b² may over- or underflow
        ball=operator.truediv,
        bounds=_div_bounds,
        mpmath=lambda mp, a, b: a / b,
        cost=2,
        singular=("b",),
        domain="a division: the divisor must not be 0",
        symbol="/",
        rounding=Rounding.CORRECT,
        noun="ratio",
        lowering=call("div", 2, overloads=_OVERLOADS, latency=4),
    ),
    PointwiseOp(
        name="floor_divide",
        aten=("floor_divide",),
        reading="floor(self/other)",
        kink="floor_divide where the quotient is an integer, where it jumps",
        domain="floor_divide: the divisor must not be 0",
        symbol="//",
        continuity=Continuity.STEPS,
        empty=_PYTORCH,
    ),
    PointwiseOp(
        name="remainder",
        aten=("remainder",),
        reading="self - other*floor(self/other)",
        kink="remainder at multiples of the divisor, where it jumps",
        domain="remainder: the divisor must not be 0",
        symbol="%",
        continuity=Continuity.JUMPS,
        empty=_PYTORCH,
    ),
    PointwiseOp(
        name="fmod",
        aten=("fmod",),
        reading=f"self - other*{truncated('self/other')}",
        kink="fmod at multiples of the divisor, where it jumps",
        domain="fmod: the divisor must not be 0",
        continuity=Continuity.JUMPS,
        empty=_PYTORCH,
    ),
    TermOp(
        name="neg",
        aten=("neg",),
        value=torch.neg,
        partials=("-1",),
        ball=operator.neg,
        bounds=_neg_bounds,
        mpmath=lambda mp, a: -a,
        cost=0.3,
        rounding=Rounding.NONE,
        noun="negated",
        lowering=call("neg", latency=1),
    ),
    TermOp(
        name="abs",
        aten=("abs",),
        value=torch.abs,
        partials=("sgn(a)",),
        ball=abs,
        bounds=absolute,
        mpmath=lambda mp, a: abs(a),
        cost=0.3,
        pieces=("a", "a", "-a"),
        kink="abs at 0",
        is_method=True,
        continuity=Continuity.KINKS,
        rounding=Rounding.NONE,
        noun="size_{}",
        lowering=call("abs", latency=1, mirrored="abs"),
    ),
    TermOp(
        name="sgn",
        aten=("sgn",),
        value=torch.sgn,
        partials=("0",),
        ball=sgn_ball,
        bounds=exact(torch.sgn),
        mpmath="sign",
        cost=0.5,
        pieces=("a", "1", "-1"),
        kink="sgn at 0",
        continuity=Continuity.STEPS,
        rounding=Rounding.NONE,
        lowering=call("sign"),
    ),
    PointwiseOp(
        name="sign",
        aten=("sign",),
        reading="sgn(self)",
        kink="sign at 0 (0 elsewhere)",
        continuity=Continuity.STEPS,
        rounding=Rounding.NONE,
        lowering=call("sign", latency=1),
    ),
    PointwiseOp(
        name="reciprocal",
        aten=("reciprocal",),
        reading="1/self",
        domain="reciprocal: its argument must not be 0",
        rounding=Rounding.CORRECT,
        noun="inverse",
        lowering=call("reciprocal", latency=4),
    ),
    PointwiseOp(
        name="addcmul",
        aten=("addcmul",),
        reading="self + value*(tensor1*tensor2)",
        lowering=Lowering(write=_addcmul, keywords=("value",)),
    ),
    PointwiseOp(
        name="addcdiv",
        aten=("addcdiv",),
        reading="self + value*(tensor1/tensor2)",
        domain="addcdiv: the divisor must not be 0",
        lowering=Lowering(write=_addcdiv, keywords=("value",)),
    ),
    PointwiseOp(name="lerp", aten=("lerp",), reading="self + weight*(end - self)", empty=_PYTORCH),
    PointwiseOp(name="deg2rad", aten=("deg2rad",), reading="self*(PI/180)", empty=_PYTORCH),
    PointwiseOp(name="rad2deg", aten=("rad2deg",), reading="self*(180/PI)", empty=_PYTORCH),
)
