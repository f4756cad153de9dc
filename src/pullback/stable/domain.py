"""Why a term has no value at a point: too little precision, a singularity, or a point outside its domain.

Balls are nan in all three cases: √ of a ball that reaches below 0 by its error alone is as much nan as √(−1).
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from typing import Any

from pullback.ops.registry import CONDITIONS
from pullback.stable.precision import Ball
from pullback.stable.program import Program

_NUDGE = 2.0**-60
"""Relative distance from its operands at which an op is tested for values."""


class Lack(enum.Enum):
    """Why there is no value."""

    OPEN = "more precision may give one"
    SINGULAR = "an operation is at the edge of its domain or at a hole in it, such as 0/0 or log(0): perhaps a limit"
    OUTSIDE = "the formula has none, there or nearby, such as log(-1)"


_GRAVEST_FIRST = (Lack.OUTSIDE, Lack.OPEN, Lack.SINGULAR)


def lacks(program: Program, values: Sequence[Any]) -> list[Lack | None]:
    """Return for every slot of a program why it has no value at a point; `None` where it has one.

    Args:
        program: the program.
        values: of every slot, its value at this point. A value that is `None` or nan is none.
    """
    found: list[Lack | None] = [None] * len(values)
    for slot, function, operands in program.steps:
        value = values[slot]
        if value is None or (not isinstance(value, bool) and value.is_nan()):
            op = program.terms[slot].op
            read = _read(operands, values) if op == "where" else operands
            inherited = {found[o] for o in read}
            found[slot] = next((lack for lack in _GRAVEST_FIRST if lack in inherited), None) or (
                Lack.OPEN if op in CONDITIONS else _own(function, [values[o] for o in read])
            )
    return found


def _read(operands: Sequence[int], values: Sequence[Any]) -> tuple[int, ...]:
    condition, a, b = operands
    return (condition,) if values[condition] is None else (a if values[condition] else b,)


def _own(function: Any, operands: Sequence[Ball]) -> Lack:
    """Return why an op has no value where its operands have theirs.

    Where an op is nan it has an interval for its domain, or misses a point of its operand exactly (`balls`). So if it
    has no value at the ends of a ball nor in its middle it has none in between, provided that the ball is too narrow
    to hold a domain between these, such as [−1, 1].
    """
    if not all(map(_narrow, operands)):
        return Lack.OPEN
    if _some_value(function, [(a,) if a.is_exact() else (a.lower(), a.mid(), a.upper()) for a in operands]):
        return Lack.OPEN
    nudges = [(1 if a.contains(0) else abs(a)) * _NUDGE for a in operands]
    beside = [(a.lower() - by, a.upper() + by) for a, by in zip(operands, nudges, strict=True)]
    return Lack.SINGULAR if _some_value(function, beside) else Lack.OUTSIDE


def _narrow(a: Ball) -> bool:
    return a.is_finite() and (a.rel_accuracy_bits() > 1 or a.abs_upper() < 0.5)


def _some_value(function: Any, operands: Sequence[tuple[Ball, ...]]) -> bool:
    return not all(function(*corner).is_nan() for corner in itertools.product(*operands))
