"""Expressions with the precedence of Python's operators, and the context of their spelling."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

COMPARE, OR, XOR, AND, SUM, PRODUCT, SIGN, POWER, ATOM = range(9)
"""How tightly an expression binds, as in Python's grammar."""


class Text(NamedTuple):
    """An expression and how tightly it binds."""

    text: str
    level: int = ATOM

    def at(self, level: int) -> str:
        """Return it as an operand of an operator with precedence `level`."""
        return self.text if self.level >= level else f"({self.text})"


class Context:
    """Context of an op's spelling.

    Attributes:
        dtype: of the example; in the text it is that of `like`.
        like: the name of an available tensor.
    """

    def __init__(self, dtype: torch.dtype, like: str, show: Callable[[Any], Text]) -> None:
        self.dtype, self.like, self.show = dtype, like, show

    def dtype_of(self, dtype: torch.dtype) -> str:
        """Return a dtype as text: the example's dtype becomes the tensors' dtype."""
        return f"{self.like}.dtype" if dtype == self.dtype else str(dtype)


def op_name(node: fx.Node) -> str:
    """Return the name of a node's op, without namespace and overload."""
    target: Any = node.target
    packet = getattr(target, "overloadpacket", None)
    return str(getattr(packet or target, "__name__", target))


def infix(symbol: str, level: int, left: Text, right: Text) -> Text:
    """Return two operands and the operator between them."""
    tight = level if symbol in "&|^" else level + 1  # a * (b * c) rounds otherwise than (a * b) * c
    if symbol == "*" and _is_number(right) and not _is_number(left):
        left, right = right, left
    if symbol == "+" and right.level == ATOM and _is_number(right) and not _is_number(left):
        left, right = right, left
    if level == COMPARE:
        return Text(f"{left.at(OR)} {symbol} {right.at(OR)}", level)
    if symbol == "+" and right.level == SIGN and right.text.startswith("-"):
        return Text(f"{left.at(SUM)} - {right.text[1:]}", SUM)
    return Text(f"{left.at(level)} {symbol} {right.at(tight)}", level)


def _is_number(text: Text) -> bool:
    return re.fullmatch(r"-?[0-9.]+(e[+-]?[0-9]+)?", text.text) is not None


def number(value: complex) -> Text:
    """Return a number as text that reads as it."""
    if isinstance(value, float) and not math.isfinite(value):
        return Text(f'float("{value}")')
    if isinstance(value, float) and value == int(value) and abs(value) < 1e15 and math.copysign(1, value) > 0:
        value = int(value)
    text = repr(value)
    return Text(text, SIGN if text.startswith("-") else ATOM)


def sequence(values: Sequence[Any], context: Context) -> Text:
    """Return a tuple."""
    shown = [context.show(v).text for v in values]
    return Text(f"({shown[0]},)" if len(shown) == 1 else f"({', '.join(shown)})")


def options_of(node: fx.Node) -> dict[str, Any]:
    """Return the keyword arguments of a node that differ from their defaults."""
    return {k: v for k, v in node.kwargs.items() if v is not None and not (k == "alpha" and v == 1)}
