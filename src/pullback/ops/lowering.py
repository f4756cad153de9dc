"""The lowering of an op for kernels: an expression that is valid in C++ and in Triton.

The functions in it are those of `kernels/include/functions.h` and `kernels/include/functions.py`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Arguments: TypeAlias = Sequence[Any]
"""Operands as text, numbers as `Number`."""

FUNCTION = 16
"""Latency of an elementary function, in additions."""


class NotLoweredError(Exception):
    """A call of an op with arguments for which kernels have no expression."""


class Operands(enum.Enum):
    """Operands of a lowered op."""

    NUMBERS = "numbers, brought to the dtype of the result"
    COMPARED = "numbers, brought to their common dtype; the result is a truth value"
    TRUTHS = "truth values"
    SELECTED = "a condition and branches, or a value to cast: the writer has its own code for it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """The expression of an op in a kernel.

    Attributes:
        write: the expression of the arguments.
        overloads: those of the ATen op, of which it is true.
        target: the Python function that is lowered, if the op is not an op of ATen.
        operands: what it takes.
        keywords: keyword arguments that `write` takes after the positional ones.
        latency: latency, in additions.
        mirrored: a function that computes f(−x) of x, with the bits of f(−x), sharing its work with f(x).
        short_error: bound on the relative error of its function in `short.h`, in units of 2⁻⁴⁴; 0 if it has none.
        in_triton: whether `functions.py` has the function too.
        in_16_bits: whether it is for 16-bit numbers too, as PyTorch's kernel is.
    """

    write: Callable[[Arguments], str]
    overloads: tuple[str, ...] = ("default",)
    target: Callable[..., Any] | None = None
    operands: Operands = Operands.NUMBERS
    keywords: tuple[str, ...] = ()
    latency: int = FUNCTION
    mirrored: str = ""
    short_error: int = 0
    in_triton: bool = True
    in_16_bits: bool = True


def call(name: str, count: int = 1, *, plain: bool = False, **given: Any) -> Lowering:
    """Return the lowering to a function of the first `count` arguments.

    Args:
        name: name of the function.
        count: how many arguments it takes.
        plain: whether the op is left to PyTorch where other arguments are not `None`.
        **given: fields of `Lowering`.
    """

    def write(arguments: Arguments) -> str:
        rest = arguments[count:]
        if len(arguments) < count or (plain and (len(rest) > 1 or any(a is not None for a in rest))):
            raise NotLoweredError(name)
        return f"{name}({', '.join(map(str, arguments[:count]))})"

    return Lowering(write=write, **given)


def infix(sign: str, **given: Any) -> Lowering:
    """Return the lowering to an infix operator."""

    def write(arguments: Arguments) -> str:
        a, b = arguments
        return f"{a} {sign} {b}"

    return Lowering(write=write, **given)


class Number:
    """A number among the arguments; its text is a vector of the type that the op computes in."""

    def __init__(self, value: Any, vector: str = "V") -> None:
        self.value, self.vector = value, vector

    def __str__(self) -> str:
        number = float(self.value)
        if number == 0 and math.copysign(1, number) < 0:  # Triton makes every zero that it is given positive
            return f"neg(set_{self.vector}(0.0))"
        return f"set_{self.vector}({_literal(number)})"


def _literal(number: float) -> str:
    """Return a number as C++ and Python write it."""
    if math.isnan(number):  # as a global constant of a Triton kernel, NaN fails Triton's check that it is unchanged
        return "INF - INF"
    return ("-" if number < 0 else "") + "INF" if math.isinf(number) else repr(number)
