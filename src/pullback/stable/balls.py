"""Enclosures in ball arithmetic of ops that `flint.arb` lacks, and of truth values.

A condition on balls is `True`, `False`, or `None` if the balls do not decide it. Balls are arguments, so nothing here
imports flint.

NaN is reserved for "no value", which `domain` reads: an op is nan if a whole ball is outside its domain, or may cross
an end of it. An op that fails for lack of precision alone returns the whole line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_LARGE = 100.0


def _line(a: Any) -> Any:
    return type(a)(0, "inf")


def _off_poles(a: Any, value: Any) -> Any:
    """Return the value of a function with poles at the integers, or the line where an inexact ball may have met one."""
    return _line(a) if value.is_nan() and a.is_finite() and not a.is_exact() else value


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


def power(a: Any, b: Any) -> Any:
    """Return aᵇ; of a negative number where b is an integer, which only an exact ball is known to be."""
    value = a**b
    return _line(a) if value.is_nan() and a < 0 and b.contains_integer() and not b.is_exact() else value


def sinh(a: Any) -> Any:
    """Return the hyperbolic sine, without arb's nan where it overflows."""
    return a.sinh() if not abs(a) > _LARGE else (a.exp() - (-a).exp()) / 2


def cosh(a: Any) -> Any:
    """Return the hyperbolic cosine, without arb's nan where it overflows."""
    return a.cosh() if not abs(a) > _LARGE else (a.exp() + (-a).exp()) / 2


def tan(a: Any) -> Any:
    """Return the tangent: its poles are irrational, so no finite number of digits is one."""
    value = a.tan()
    return _line(a) if value.is_nan() and a.is_finite() else value


def erfcx(a: Any) -> Any:
    """Return e^(a²) erfc(a), where that is huge times tiny as U(1/2, 1/2, a²)/√π (Abramowitz and Stegun 13.6.39)."""
    if a > _LARGE:
        half = type(a)(0.5)
        return (a * a).hypgeom_u(half, half) * type(a).pi().rsqrt()
    return (a * a).exp() * a.erfc()


def erfc(a: Any) -> Any:
    """Return the complementary error function, in its tail with digits, where arb knows only how small it is."""
    return (-a * a).exp() * erfcx(a) if a > _LARGE else a.erfc()


def lgamma(a: Any) -> Any:
    """Return log|Γ(a)|, by reflection where a is negative: |Γ(a) Γ(1 − a)| = π/|sin(πa)|."""
    if not a < 0:
        return _off_poles(a, a.lgamma())
    return _off_poles(a, (type(a).pi() / abs(a.sin_pi())).log() - (1 - a).lgamma())


def digamma(a: Any) -> Any:
    """Return the derivative of lgamma."""
    return _off_poles(a, a.digamma())


def trigamma(a: Any) -> Any:
    """Return the derivative of digamma: Hurwitz' zeta at 2, ψ′(a) = π²/sin²(πa) − ψ′(1 − a) where a is negative."""
    two = type(a)(2)
    if not a < 0:
        return _off_poles(a, two.zeta(a))
    return _off_poles(a, (type(a).pi() / a.sin_pi()) ** 2 - two.zeta(1 - a))


def gauss(a: Any) -> Any:
    """Return e^(−a²/2)."""
    return (-a * a / 2).exp()


def qgauss(a: Any) -> Any:
    """Return e^(−a²/4)."""
    return (-a * a / 4).exp()


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
