"""Helpers for enclosures in ball arithmetic.

A condition on balls is `True`, `False`, or `None` if the balls do not decide it. Balls are arguments, so nothing in the
registry imports flint, an optional package.

NaN is reserved for "no value", which `stable/oracle/limits.py` reads: an op is nan if a whole ball is outside its
domain, or may cross an end of it. An op that fails for lack of precision alone returns the whole line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LARGE = 100.0
"""Beyond this, some of arb's functions overflow or lose all digits, and other formulas take over.

These formulas do not cancel there: e⁻¹⁰⁰ is 10⁻⁸⁷ of e¹⁰⁰, and erfc(100) is 6·10⁻⁴³⁴⁶.
"""


def method(name: str) -> Callable[[Any], Any]:
    """Return the function that calls a method of a ball."""
    return lambda a: getattr(a, name)()


def line(a: Any) -> Any:
    """Return the ball of all real numbers."""
    return type(a)(0, "inf")


def off_poles(a: Any, value: Any) -> Any:
    """Return the value of a function with poles at integers; the line if the pole is within the error of `a` alone."""
    return line(a) if value.is_nan() and a.is_finite() and not a.is_exact() else value
