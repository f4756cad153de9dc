"""Choices between values: by a condition, or by which one is larger."""

from __future__ import annotations

from typing import Any

import torch

from pullback.ops.bounds import Condition, Interval, exact, masked
from pullback.ops.lowering import Arguments, Lowering, Number, Operands, call
from pullback.ops.record import Continuity, Given, PointwiseOp, Rounding, TermOp

_PYTORCH = {"lowering": "left to PyTorch's kernel"}
_LARGER = "where({0} == {1}, 0.5, where({0} > {1}, 1, 0))"
"""The derivative of a maximum by its first operand: shared at ties, as in PyTorch.

max(a, b) = (a + b + |a − b|)/2, and |a − b| has the subgradient 0 at a tie, which leaves 1/2 to each.
"""


def where_ball(condition: bool | None, a: Any, b: Any) -> Any:
    """Return the chosen ball; where the choice is open, one that encloses both."""
    return a.union(b) if condition is None else a if condition else b


def _where_bounds(c: Condition, a: Interval, b: Interval) -> Interval:
    open_ = ~(c.true | c.false)
    low = torch.where(c.true, a.low, torch.where(open_, torch.minimum(a.low, b.low), b.low))
    high = torch.where(c.true, a.high, torch.where(open_, torch.maximum(a.high, b.high), b.high))
    if a.undefined is None and b.undefined is None and c.undefined is None:
        return Interval(low, high)
    no = torch.zeros_like(c.true)
    in_a, in_b, in_c = (no if m is None else m for m in (a.undefined, b.undefined, c.undefined))
    undefined = torch.where(c.true, in_a, torch.where(open_, in_a & in_b, in_b)) | in_c
    return masked(low, high, undefined)


def _clamp_reading(given: Given) -> str:
    below = "self" if given.get("max") is None else "where(self > max, max, self)"
    return below if given.get("min") is None else f"where(self < min, min, {below})"


def clamp(given: Arguments) -> str:
    """Write an extreme whose second operand is the value: where it equals a bound, as −0 does 0, PyTorch keeps it."""
    value, *bounds = given
    lower, upper = [*bounds, None, None][:2]
    text = str(value) if lower is None else f"maximum({lower}, {value})"
    return text if upper is None else f"minimum({upper}, {text})"


def _clamp_max(given: Arguments) -> str:
    value, upper = given
    return f"minimum({upper}, {value})"


def _hardtanh(given: Arguments) -> str:
    x, *bounds = given
    lower, upper = bounds or (Number(-1.0), Number(1.0))
    return clamp((x, lower, upper))


def _selected(*overloads: str) -> Lowering:
    return Lowering(write=str, overloads=overloads, operands=Operands.SELECTED, latency=1)


OPS = (
    TermOp(
        name="where",
        arity=3,
        aten=("where",),
        value=torch.where,
        ball=where_ball,
        bounds=_where_bounds,
        mpmath=lambda mp, condition, a, b: a if condition else b,
        is_piecewise=True,
        kink="where, if the two sides differ at the border of its condition",
        rounding=Rounding.NONE,
        noun="chosen",
        lowering=_selected("self"),
        empty={"partials": "`stable/derivative.py` differentiates its branches"},
    ),
    PointwiseOp(
        name="masked_fill",
        aten=("masked_fill",),
        reading="where(mask, value, self)",
        kink="masked_fill, at the border of its mask",
        is_method=True,
        rounding=Rounding.NONE,
        noun="filled",
        lowering=_selected("Scalar"),
    ),
    TermOp(
        name="maximum",
        arity=2,
        aten=("maximum",),
        value=torch.maximum,
        partials=(_LARGER.format("a", "b"), _LARGER.format("b", "a")),
        ball=lambda a, b: a.max(b),
        bounds=exact(torch.maximum),
        mpmath=lambda mp, a, b: max(a, b),
        is_commutative=True,
        pieces=("a - b", "a", "b"),
        kink="maximum where its arguments are equal",
        continuity=Continuity.KINKS,
        rounding=Rounding.NONE,
        lowering=call("maximum", 2, latency=3),
    ),
    TermOp(
        name="minimum",
        arity=2,
        aten=("minimum",),
        value=torch.minimum,
        partials=(_LARGER.format("b", "a"), _LARGER.format("a", "b")),
        ball=lambda a, b: a.min(b),
        bounds=exact(torch.minimum),
        mpmath=lambda mp, a, b: min(a, b),
        is_commutative=True,
        pieces=("a - b", "b", "a"),
        kink="minimum where its arguments are equal",
        continuity=Continuity.KINKS,
        rounding=Rounding.NONE,
        lowering=call("minimum", 2, latency=3),
    ),
    PointwiseOp(
        name="fmax",
        aten=("fmax",),
        reading="where(self >= other, self, other)",
        kink="fmax where its arguments are equal",
        continuity=Continuity.KINKS,
        empty=_PYTORCH,
    ),
    PointwiseOp(
        name="fmin",
        aten=("fmin",),
        reading="where(self <= other, self, other)",
        kink="fmin where its arguments are equal",
        continuity=Continuity.KINKS,
        empty=_PYTORCH,
    ),
    PointwiseOp(
        name="clamp",
        aten=("clamp",),
        reading=_clamp_reading,
        kink="clamp at its bounds",
        is_method=True,
        continuity=Continuity.KINKS,
        rounding=Rounding.NONE,
        lowering=Lowering(write=clamp, latency=3),
    ),
    PointwiseOp(
        name="clamp_min",
        aten=("clamp_min",),
        reading="where(self < min, min, self)",
        kink="clamp at its bound",
        continuity=Continuity.KINKS,
        rounding=Rounding.NONE,
        lowering=Lowering(write=clamp, latency=3),
    ),
    PointwiseOp(
        name="clamp_max",
        aten=("clamp_max",),
        reading="where(self > max, max, self)",
        kink="clamp at its bound",
        continuity=Continuity.KINKS,
        rounding=Rounding.NONE,
        lowering=Lowering(write=_clamp_max, latency=3),
    ),
    PointwiseOp(
        name="hardtanh",
        aten=("hardtanh",),
        reading="where(self <= min_val, min_val, where(self >= max_val, max_val, self))",
        kink="hardtanh at its bounds",
        continuity=Continuity.KINKS,
        rounding=Rounding.NONE,
        lowering=Lowering(write=_hardtanh, latency=3),
    ),
    PointwiseOp(
        name="hardtanh_backward",
        aten=("hardtanh_backward",),
        continuity=Continuity.JUMPS,
        rounding=Rounding.NONE,
        lowering=call("hardtanh_backward", 4, latency=3),
    ),
    PointwiseOp(
        name="threshold",
        aten=("threshold",),
        reading="where(self <= threshold, value, self)",
        kink="threshold, where it jumps",
        continuity=Continuity.JUMPS,
        rounding=Rounding.NONE,
        lowering=call("threshold", 3, latency=3),
    ),
    PointwiseOp(
        name="threshold_backward",
        aten=("threshold_backward",),
        continuity=Continuity.JUMPS,
        rounding=Rounding.NONE,
        lowering=call("threshold_backward", 3, latency=3),
    ),
    PointwiseOp(
        name="heaviside",
        aten=("heaviside",),
        reading="where(self > 0, 1, where(self == 0, values, 0))",
        kink="heaviside at 0, where it jumps",
        continuity=Continuity.STEPS,
        empty=_PYTORCH,
    ),
    # where there is an exact value there is nothing to replace
    PointwiseOp(name="nan_to_num", aten=("nan_to_num",), reading="self", continuity=Continuity.JUMPS, empty=_PYTORCH),
)
