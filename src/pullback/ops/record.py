"""The record of a pointwise op: a column for each thing that some part of the library asks about it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

from pullback.ops.bounds import Bounds
from pullback.ops.lowering import Lowering

Given: TypeAlias = Mapping[str, Any]
"""Arguments of an ATen op by the names of its schema: terms; `None`, strings and lists unchanged."""

Reading: TypeAlias = "str | Callable[[Given], str | None]"
"""The text of a term in the parameters of an ATen op, or a function of the arguments that returns it.

`None` from that function means that the op is not pointwise for these arguments.
"""

_OF_TERMS = ("value", "partials", "ball", "bounds", "mpmath")
COLUMNS = ("aten", "reading", *_OF_TERMS, "lowering", "triton")
"""Columns in which every op has an entry, or a reason for having none."""

_OPERANDS = ("condition", "self", "other")
"""Parameters of ATen ops that are operands of a term, in their order."""
_COMPOSITE = "its term is made of other ops, which have one"
_BACKWARD = "autograd calls it, and formulas are read before autograd"


class Continuity(enum.Enum):
    """Continuity of an op in its operands, and of its derivative."""

    SMOOTH = "both are continuous"
    KINKS = "the derivative jumps"
    JUMPS = "the op jumps"
    STEPS = "the op jumps, and is constant between the jumps"


class Rounding(enum.Enum):
    """The last bits of an op's result, for real operands."""

    NONE = "the result is an operand, a simple number or a truth value"
    CORRECT = "IEEE 754 leaves one result"
    FREE = "kernels may differ"


@dataclass(frozen=True, slots=True, kw_only=True)
class PointwiseOp:
    """A pointwise op of PyTorch, or a part of one in the kernels.

    Attributes:
        name: ATen's name where the op is one of ATen's.
        aten: names of the ATen ops that it stands for.
        reading: an ATen call as a term.
        kink: where it is not smooth, for `explain`; empty for a smooth function.
        domain: where it is defined, for `explain`; empty if that is everywhere.
        continuity: continuity in each operand, wherever it is defined.
        rounding: rounding of its result.
        symbol: Python's infix operator for it.
        noun: name of its result in written source, with `{}` for the name of its operand; by default, the op's name.
        is_method: whether PyTorch code calls it as a method of its first operand.
        lowering: its function in the kernels.
        fill: for ops that make a tensor of one number, that number as a function of the arguments.
        empty: the reason for each empty column of `COLUMNS`, where it is not evident (`why_empty`).
    """

    name: str
    aten: tuple[str, ...] = ()
    reading: Reading | None = None
    kink: str = ""
    domain: str = ""
    continuity: Continuity = Continuity.SMOOTH
    rounding: Rounding = Rounding.FREE
    symbol: str = ""
    noun: str = ""
    is_method: bool = False
    lowering: Lowering | None = None
    fill: Callable[..., Any] | None = None
    empty: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_readable(self) -> bool:
        """Whether calls of it are terms: not those of ops that autograd alone calls."""
        return self.reading is not None

    def term(self, given: Given) -> str | None:
        """Return an ATen call as the text of a term; `None` if the op is not pointwise for these arguments."""
        return self.reading(given) if callable(self.reading) else self.reading

    def has(self, column: str) -> bool:
        """Whether a column of `COLUMNS` has an entry."""
        match column:
            case "aten":
                return bool(self.aten) or (self.lowering is not None and self.lowering.target is not None)
            case "reading":
                return self.is_readable
            case "lowering":
                return self.lowering is not None or self.fill is not None
            case "triton":
                return self.fill is not None or (self.lowering is not None and self.lowering.in_triton)
        return getattr(self, column, None) not in (None, ())

    def why_empty(self, column: str) -> str:
        """Return the reason for an empty column; empty if there is none."""
        if column == "triton" and self.lowering is None:
            column = "lowering"
        if column in self.empty:
            return self.empty[column]
        if column in ("reading", *_OF_TERMS):
            return _COMPOSITE if self.is_readable else _BACKWARD
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermOp(PointwiseOp):
    """An op of the language of terms, in operands a, b and c. Other ops of ATen are read as several of these.

    Attributes:
        name: name in terms and certificates.
        reading: an ATen call as a term; by default, this op of the tensor arguments.
        arity: number of operands.
        value: function of tensors, op by op.
        partials: the derivative by each operand, as a term. At kinks it is PyTorch's.
        ball: an enclosure on balls of `flint.arb`, and on truth values for conditions; NaN, if the ball is or may be
            outside of the domain, whose ends count as outside where the op has no finite value (`balls.py`).
        bounds: an enclosure on intervals of float64 tensors.
        mpmath: value in an mpmath context: the name of a function, or a function of the context and the operands.
        cost: number of additions that take the same time, fused in a kernel.
        is_condition: whether the value is a truth value.
        is_commutative: whether the two operands may be exchanged.
        is_piecewise: whether it is not analytic although `continuity` says smooth: it consists of several functions.
        is_lossy_in_autograd: whether autograd computes its derivative from the rounded result, or from a square.
        pieces: a term t, the op where t is positive, and the op where t is negative, as terms; both hold at t = 0 if
            the op is continuous.
        singular: terms at whose zeros a pole, a hole or the end of the domain lies.
        spelling: name in the source of a form; by default that in `torch`. A bare name is that of `value`.
    """

    arity: int = 1
    value: Callable[..., Any]
    partials: tuple[str, ...] = ()
    ball: Callable[..., Any]
    bounds: Bounds
    mpmath: str | Callable[..., Any] | None = None
    cost: float = 1
    is_condition: bool = False
    is_commutative: bool = False
    is_piecewise: bool = False
    is_lossy_in_autograd: bool = False
    pieces: tuple[str, ...] = ()
    singular: tuple[str, ...] = ()
    spelling: str = ""

    @property
    def is_readable(self) -> bool:
        """Whether it is an op of ATen."""
        return bool(self.aten)

    @property
    def is_analytic(self) -> bool:
        """Whether it is analytic wherever it is defined, as the e-graph's identity theorem asks."""
        return self.continuity is Continuity.SMOOTH and not self.is_piecewise

    def term(self, given: Given) -> str | None:
        """Return an ATen call as the text of a term; `None` if the op is not pointwise for these arguments."""
        if self.reading is not None:
            return self.reading(given) if callable(self.reading) else self.reading
        return f"{self.name}({', '.join(name for name in _OPERANDS if name in given)})"

    def why_empty(self, column: str) -> str:
        """Return the reason for an empty column; empty if there is none."""
        if column in self.empty:
            return self.empty[column]
        if column in ("aten", "reading"):
            return "PyTorch has no such op"
        if column == "partials" and self.is_condition:
            return "a truth value has no derivative"
        return self.empty.get("lowering", "") if column == "triton" and self.lowering is None else ""
