"""Named constants of terms: exact in ball arithmetic, and rounded to float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

EXPONENTIALS = {f"EXP{'_M' if n < 0 else '_'}{abs(n)}": n for n in range(-20, 21) if abs(n) > 1}
LOGARITHMS = {f"LN{n}": n for n in (3, 5, 7)}
ROOTS = {f"SQRT{n}": n for n in (3, 5, 6, 7, 10)}
"""Exponentials, logarithms and square roots of integers by name. Rounded to float64 they would move a removable hole:
(eˣ − e⁻⁴)/(x + 4) would have a pole at −4.
"""


def _of(n: int, function: str) -> Callable[[Any], Any]:
    return lambda arb: getattr(arb(n), function)()


def _of_mpmath(n: int, function: str) -> Callable[[Any], Any]:
    return lambda mp: getattr(mp, function)(n)


CONSTANTS: dict[str, Callable[[Any], Any]] = {
    "LN2": lambda arb: arb(2).log(),
    "LN10": lambda arb: arb(10).log(),
    "PI": lambda arb: arb.pi(),
    "E": lambda arb: arb(1).exp(),
    "SQRT2": lambda arb: arb(2).sqrt(),
    "SQRT1_2": lambda arb: arb(2).rsqrt(),
    "INV_SQRT_2PI": lambda arb: (2 * arb.pi()).rsqrt(),
    "SQRT_2_OVER_PI": lambda arb: (2 / arb.pi()).sqrt(),
    "TWO_OVER_SQRTPI": lambda arb: 2 * arb.pi().rsqrt(),
    **{name: _of(n, "exp") for name, n in EXPONENTIALS.items()},
    **{name: _of(n, "log") for name, n in LOGARITHMS.items()},
    **{name: _of(n, "sqrt") for name, n in ROOTS.items()},
}
"""Exact constants by name; each is a function of the ball class."""

VALUES = {
    "LN2": 0.6931471805599453,
    "LN10": 2.302585092994046,
    "PI": 3.141592653589793,
    "E": 2.718281828459045,
    "SQRT2": 1.4142135623730951,
    "SQRT1_2": 0.7071067811865476,
    "INV_SQRT_2PI": 0.3989422804014327,
    "SQRT_2_OVER_PI": 0.7978845608028654,
    "TWO_OVER_SQRTPI": 1.1283791670955126,
    **{name: math.exp(n) for name, n in EXPONENTIALS.items()},
    **{name: math.log(n) for name, n in LOGARITHMS.items()},
    **{name: math.sqrt(n) for name, n in ROOTS.items()},
}
"""The same constants rounded to float64; this number in a formula stands for the constant."""

MPMATH: dict[str, Callable[[Any], Any]] = {
    "LN2": lambda mp: mp.log(2),
    "LN10": lambda mp: mp.log(10),
    "PI": lambda mp: +mp.pi,
    "E": lambda mp: +mp.e,
    "SQRT2": lambda mp: mp.sqrt(2),
    "SQRT1_2": lambda mp: mp.sqrt(0.5),
    "INV_SQRT_2PI": lambda mp: 1 / mp.sqrt(2 * mp.pi),
    "SQRT_2_OVER_PI": lambda mp: mp.sqrt(2 / mp.pi),
    "TWO_OVER_SQRTPI": lambda mp: 2 / mp.sqrt(mp.pi),
    **{name: _of_mpmath(n, "exp") for name, n in EXPONENTIALS.items()},
    **{name: _of_mpmath(n, "log") for name, n in LOGARITHMS.items()},
    **{name: _of_mpmath(n, "sqrt") for name, n in ROOTS.items()},
}
"""The same constants in an mpmath context."""
