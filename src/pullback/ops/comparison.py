"""Comparisons, and logic on truth values: on balls and on intervals a condition is true, false, or undecided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pullback.ops.bounds import Bounds, Condition, Interval, either
from pullback.ops.lowering import Lowering, Operands, call, infix
from pullback.ops.record import PointwiseOp, Rounding, TermOp

_PYTORCH = {"lowering": "left to PyTorch's kernel"}


def greater(a: Any, b: Any) -> bool | None:
    """Whether a > b, of balls."""
    return True if a > b else False if a <= b else None


def equal(a: Any, b: Any) -> bool | None:
    """Whether a = b, of balls."""
    return True if a == b else False if not a.overlaps(b) else None


def negated(a: bool | None) -> bool | None:
    """Return the opposite of a truth value."""
    return None if a is None else not a


def both(a: bool | None, b: bool | None) -> bool | None:
    """Whether both hold."""
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


def _one(a: bool | None, b: bool | None) -> bool | None:
    return negated(both(negated(a), negated(b)))


def _compared(true: Callable[..., Tensor], false: Callable[..., Tensor]) -> Bounds:
    """Return the condition of two intervals: `true` and `false` are tests for when it is settled."""
    return lambda a, b: Condition(true(a, b), false(a, b), either(a.undefined, b.undefined))


def _above(a: Interval, b: Interval) -> Tensor:
    return a.low > b.high


def _not_below(a: Interval, b: Interval) -> Tensor:
    return a.low >= b.high


def _below(a: Interval, b: Interval) -> Tensor:
    return _above(b, a)


def _not_above(a: Interval, b: Interval) -> Tensor:
    return _not_below(b, a)


def _identical(a: Interval, b: Interval) -> Tensor:
    return (a.low == a.high) & (b.low == b.high) & (a.low == b.low)


def _disjoint(a: Interval, b: Interval) -> Tensor:
    return (a.low > b.high) | (a.high < b.low)


def _and_bounds(a: Condition, b: Condition) -> Condition:
    return Condition(a.true & b.true, a.false | b.false, either(a.undefined, b.undefined))


def _not_bounds(a: Condition) -> Condition:
    return Condition(a.false, a.true, a.undefined)


def _or_bounds(a: Condition, b: Condition) -> Condition:
    return _not_bounds(_and_bounds(_not_bounds(a), _not_bounds(b)))


def _comparison(
    name: str,
    symbol: str,
    noun: str,
    ball: Callable[..., Any],
    bounds: Bounds,
    mpmath: Callable[..., Any],
    symmetric: bool = False,
) -> TermOp:
    return TermOp(
        name=name,
        arity=2,
        aten=(name,),
        value=getattr(torch, name),
        ball=ball,
        bounds=bounds,
        mpmath=mpmath,
        cost=0.5,
        is_condition=True,
        is_commutative=symmetric,
        symbol=symbol,
        noun=noun,
        rounding=Rounding.NONE,
        lowering=call(name, 2, overloads=("Tensor", "Scalar"), operands=Operands.COMPARED, latency=1),
    )


def _not_lowering() -> Lowering:
    return Lowering(write=lambda given: f"~{given[0]}", operands=Operands.TRUTHS, latency=1)


def _class_test(name: str) -> Lowering:
    return call(name, operands=Operands.COMPARED, latency=1)


_XOR = "logical_and(logical_or(self, other), logical_not(logical_and(self, other)))"
_TRUTHS = {"operands": Operands.TRUTHS, "latency": 1}
_BITS = {**_TRUTHS, "overloads": ("Tensor",)}

OPS = (
    _comparison("gt", ">", "above", greater, _compared(_above, _not_above), lambda mp, a, b: a > b),
    _comparison(
        "ge", ">=", "above", lambda a, b: negated(greater(b, a)), _compared(_not_below, _below), lambda mp, a, b: a >= b
    ),
    _comparison("lt", "<", "below", lambda a, b: greater(b, a), _compared(_below, _not_below), lambda mp, a, b: a < b),
    _comparison(
        "le", "<=", "below", lambda a, b: negated(greater(a, b)), _compared(_not_above, _above), lambda mp, a, b: a <= b
    ),
    _comparison("eq", "==", "same", equal, _compared(_identical, _disjoint), lambda mp, a, b: a == b, symmetric=True),
    _comparison(
        "ne",
        "!=",
        "other",
        lambda a, b: negated(equal(a, b)),
        _compared(_disjoint, _identical),
        lambda mp, a, b: a != b,
        symmetric=True,
    ),
    TermOp(
        name="logical_and",
        arity=2,
        aten=("logical_and",),
        value=torch.logical_and,
        ball=both,
        bounds=_and_bounds,
        mpmath=lambda mp, a, b: a and b,
        cost=0.3,
        is_condition=True,
        is_commutative=True,
        rounding=Rounding.NONE,
        lowering=infix("&", **_TRUTHS),
    ),
    TermOp(
        name="logical_or",
        arity=2,
        aten=("logical_or",),
        value=torch.logical_or,
        ball=_one,
        bounds=_or_bounds,
        mpmath=lambda mp, a, b: a or b,
        cost=0.3,
        is_condition=True,
        is_commutative=True,
        rounding=Rounding.NONE,
        lowering=infix("|", **_TRUTHS),
    ),
    TermOp(
        name="logical_not",
        aten=("logical_not",),
        value=torch.logical_not,
        ball=negated,
        bounds=_not_bounds,
        mpmath=lambda mp, a: not a,
        cost=0.3,
        is_condition=True,
        rounding=Rounding.NONE,
        lowering=_not_lowering(),
    ),
    PointwiseOp(
        name="logical_xor", aten=("logical_xor",), reading=_XOR, rounding=Rounding.NONE, lowering=infix("^", **_TRUTHS)
    ),
    PointwiseOp(
        name="bitwise_and",
        aten=("bitwise_and",),
        reading="logical_and(self, other)",
        symbol="&",
        rounding=Rounding.NONE,
        lowering=infix("&", **_BITS),
    ),
    PointwiseOp(
        name="bitwise_or",
        aten=("bitwise_or",),
        reading="logical_or(self, other)",
        symbol="|",
        rounding=Rounding.NONE,
        lowering=infix("|", **_BITS),
    ),
    PointwiseOp(
        name="bitwise_xor",
        aten=("bitwise_xor",),
        reading=_XOR,
        symbol="^",
        rounding=Rounding.NONE,
        lowering=infix("^", **_BITS),
    ),
    PointwiseOp(
        name="bitwise_not",
        aten=("bitwise_not",),
        reading="logical_not(self)",
        rounding=Rounding.NONE,
        lowering=_not_lowering(),
    ),
    # a term has an exact value where it has one at all
    PointwiseOp(
        name="isnan",
        aten=("isnan",),
        reading="0 != 0",
        rounding=Rounding.NONE,
        noun="isnan_{}",
        lowering=_class_test("isnan"),
    ),
    PointwiseOp(name="isinf", aten=("isinf",), reading="0 != 0", rounding=Rounding.NONE, lowering=_class_test("isinf")),
    PointwiseOp(
        name="isfinite",
        aten=("isfinite",),
        reading="0 == 0",
        noun="isfinite_{}",
        empty={"lowering": "PyTorch records it as (x == x)·(|x| != ∞)"},
    ),
)
