"""Comparisons and choices on intervals: a condition is settled at some points and open at others."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pullback.stable.intervals import Condition, Interval, Rule, blanked, either


def _where(c: Condition, a: Interval, b: Interval) -> Interval:
    open_ = ~(c.true | c.false)
    low = torch.where(c.true, a.low, torch.where(open_, torch.minimum(a.low, b.low), b.low))
    high = torch.where(c.true, a.high, torch.where(open_, torch.maximum(a.high, b.high), b.high))
    if a.undefined is None and b.undefined is None and c.undefined is None:
        return Interval(low, high)
    no = torch.zeros_like(c.true)
    in_a, in_b, in_c = (no if m is None else m for m in (a.undefined, b.undefined, c.undefined))
    undefined = torch.where(c.true, in_a, torch.where(open_, in_a & in_b, in_b)) | in_c
    return blanked(low, high, undefined)


def _compare(true: Callable[..., Tensor], false: Callable[..., Tensor]) -> Rule:
    """Return the rule of a comparison, of tests for when two intervals settle it."""
    return lambda a, b: Condition(true(a, b), false(a, b), either(a.undefined, b.undefined))


def _above(a: Interval, b: Interval) -> Tensor:
    return a.low > b.high


def _not_below(a: Interval, b: Interval) -> Tensor:
    return a.low >= b.high


def _same(a: Interval, b: Interval) -> Tensor:
    return (a.low == a.high) & (b.low == b.high) & (a.low == b.low)


def _apart(a: Interval, b: Interval) -> Tensor:
    return (a.low > b.high) | (a.high < b.low)


def _swapped(test: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda a, b: test(b, a)


def _and(a: Condition, b: Condition) -> Condition:
    return Condition(a.true & b.true, a.false | b.false, either(a.undefined, b.undefined))


def _not(a: Condition) -> Condition:
    return Condition(a.false, a.true, a.undefined)


CHOICES: dict[str, Rule] = {
    "where": _where,
    "gt": _compare(_above, _swapped(_not_below)),
    "ge": _compare(_not_below, _swapped(_above)),
    "lt": _compare(_swapped(_above), _not_below),
    "le": _compare(_swapped(_not_below), _above),
    "eq": _compare(_same, _apart),
    "ne": _compare(_apart, _same),
    "logical_and": _and,
    "logical_or": lambda a, b: _not(_and(_not(a), _not(b))),
    "logical_not": _not,
}
"""A rule for each op on conditions."""
