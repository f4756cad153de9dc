"""Enclosures in ball arithmetic of ops that `flint.arb` does not have by itself, and its truth values.

A condition on balls is `True`, `False`, or `None` where the balls do not settle it. Balls are handed in, so nothing
here imports flint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def method(name: str) -> Callable[[Any], Any]:
    """Return the function that calls a method of a ball."""
    return lambda a: getattr(a, name)()


def sgn(a: Any) -> Any:
    """Return the sign: 0 at 0."""
    one = type(a)(1)
    if a > 0:
        return one
    if a < 0:
        return -one
    return type(a)(0) if a == 0 else type(a)(0, 1)


def relu(a: Any) -> Any:
    """Return max(a, 0)."""
    return a.max(type(a)(0))


def hypot(a: Any, b: Any) -> Any:
    """Return √(a² + b²)."""
    return (a * a + b * b).sqrt()


def atan2(a: Any, b: Any) -> Any:
    """Return the angle of the point (b, a)."""
    return type(a).atan2(a, b)


def exp2(a: Any) -> Any:
    """Return 2ᵃ."""
    return (a * type(a)(2).log()).exp()


def log2(a: Any) -> Any:
    """Return the logarithm to base 2."""
    return a.log() / type(a)(2).log()


def log10(a: Any) -> Any:
    """Return the logarithm to base 10."""
    return a.log() / type(a)(10).log()


def sigmoid(a: Any) -> Any:
    """Return 1 / (1 + e⁻ᵃ), tight on either side."""
    if a > 0:
        return 1 / (1 + (-a).exp())
    e = a.exp()
    return e / (1 + e)


def softplus(a: Any) -> Any:
    """Return log(1 + eᵃ), tight on either side."""
    return a + (-a).exp().log1p() if a > 0 else a.exp().log1p()


def erfcx(a: Any) -> Any:
    """Return e^(a²) erfc(a)."""
    return (a * a).exp() * a.erfc()


def gauss(a: Any) -> Any:
    """Return e^(−a²/2)."""
    return (-a * a / 2).exp()


def qgauss(a: Any) -> Any:
    """Return e^(−a²/4)."""
    return (-a * a / 4).exp()


def trigamma(a: Any) -> Any:
    """Return the derivative of digamma: Hurwitz' zeta at 2 (Abramowitz and Stegun 6.4.10)."""
    return type(a)(2).zeta(a)


def greater(a: Any, b: Any) -> bool | None:
    """Whether a > b."""
    return True if a > b else False if a <= b else None


def equal(a: Any, b: Any) -> bool | None:
    """Whether a = b."""
    return True if a == b else False if not a.overlaps(b) else None


def negated(a: bool | None) -> bool | None:
    """Return the opposite of a truth value."""
    return None if a is None else not a


def both(a: bool | None, b: bool | None) -> bool | None:
    """Whether both hold."""
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


def where(condition: bool | None, a: Any, b: Any) -> Any:
    """Return the chosen ball; where the choice is open, one that encloses both."""
    return a.union(b) if condition is None else a if condition else b
