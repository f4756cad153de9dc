"""Terms: pointwise formulas as the search sees them, hash-consed, named by ATen's ops.

They are the words of an e-graph and no representation of programs: a formula comes from a `torch.fx` graph and the
result of a search goes back into one (`stable/graphs.py`).
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from pullback.ops.registry import OPS

VAR, CONST, NAMED, POLY = "var", "const", "named", "poly"
LEAVES = frozenset({VAR, CONST, NAMED})


_interned: WeakValueDictionary[Any, Term] = WeakValueDictionary()


class Term:
    """One operation on terms; equal terms are one object, so they compare and hash by identity.

    Attributes:
        op: the name of an op of the registry, or one of `VAR`, `CONST`, `NAMED`, `POLY`.
        args: its operands.
        value: of a variable its name, of a constant its `Fraction`, of a named constant its name, of a polynomial
            its `Poly`; else `None`.
    """

    __slots__ = ("__weakref__", "args", "op", "value")
    op: str
    args: tuple[Term, ...]
    value: Any

    def __new__(cls, op: str, args: tuple[Term, ...] = (), value: Any = None) -> Term:
        """One term of these parts."""
        key = (op, tuple(map(id, args)), value)
        found = _interned.get(key)
        if found is None:
            found = super().__new__(cls)
            found.op, found.args, found.value = op, args, value
            _interned[key] = found
        return found

    def __repr__(self) -> str:
        return show(self)

    def __reduce__(self) -> Any:
        return Term, (self.op, self.args, self.value)


def var(name: str) -> Term:
    """Variable."""
    return Term(VAR, (), name)


def const(value: int | float | str | Fraction) -> Term:
    """Constant; a float means the shortest decimal that reads as it, which its author wrote."""
    return Term(CONST, (), Fraction(repr(value)) if isinstance(value, float) else Fraction(value))


def named(name: str) -> Term:
    """Named constant (`ops.constants`), which is exact."""
    return Term(NAMED, (), name)


def topological(roots: Iterable[Term]) -> list[Term]:
    """Every subterm of some roots once, operands first."""
    order: dict[Term, None] = {}
    waiting = list(roots)
    while waiting:
        term = waiting[-1]
        ahead = [a for a in term.args if a not in order]
        if ahead:
            waiting += ahead
        else:
            order.setdefault(waiting.pop())
    return list(order)


def length_of(root: Term) -> int:
    """Number of terms that `show` writes: one that is used twice counts twice."""
    lengths: dict[Term, int] = {}
    for term in topological([root]):
        lengths[term] = 1 + sum(lengths[a] for a in term.args)
    return lengths[root]


def variables(root: Term) -> list[str]:
    """Names of the variables of a term, sorted."""
    return sorted({t.value for t in topological([root]) if t.op == VAR})


def substitute(root: Term, values: Mapping[Term, Term]) -> Term:
    """Term with some of its subterms replaced."""
    made: dict[Term, Term] = dict(values)
    for term in topological([root]):
        if term not in made:
            made[term] = Term(term.op, tuple(made[a] for a in term.args), term.value) if term.args else term
    return made[root]


def _syntax(symbol: str) -> type[ast.AST]:
    """Class of an infix operator in Python's syntax tree."""
    node = ast.parse(f"a {symbol} b", mode="eval").body
    return type(node.ops[0] if isinstance(node, ast.Compare) else node.op)  # type: ignore[attr-defined]


_BY_SYNTAX = {_syntax(op.symbol): name for name, op in OPS.items() if op.symbol}
_INFIX = {name: op.symbol for name, op in OPS.items() if op.symbol and name != "ne"}
"""Ops that are shown by their symbol. Certificates have `ne(a, b)` as a call."""


def parse(text: str, names: Collection[str] = ()) -> Term:
    """Read a term in Python's syntax: names in capitals are constants, other names variables, `a**2` is a product.

    A quotient of integers is a constant; written `div(1, 3)` it is an operation, as `neg(2)` is.

    Args:
        text: a term in the syntax of `show`.
        names: identifiers that are variables even in capitals.

    Raises:
        ValueError: for other syntax.
    """
    root = _read(ast.parse(text, mode="eval").body, text)
    return substitute(root, {named(name): var(name) for name in names})


def _read(node: ast.expr, text: str) -> Term:
    match node:
        case ast.Constant(value=int() | float() as number):
            return const(number)
        case ast.Name(id=name):
            return named(name) if name.isupper() else var(name)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return const(-number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Term("neg", (_read(operand, text),))
        case ast.BinOp(op=ast.Pow(), left=base, right=exponent):
            return power(_read(base, text), _read(exponent, text))
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _BY_SYNTAX:
            a, b = _read(left, text), _read(right, text)
            fraction = type(op) is ast.Div and _whole(a) and _whole(b) and b.value != 0
            return const(a.value / b.value) if fraction else Term(_BY_SYNTAX[type(op)], (a, b))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _BY_SYNTAX:
            return Term(_BY_SYNTAX[type(op)], (_read(left, text), _read(right, text)))
        case ast.Call(func=ast.Name(id="poly"), args=[of, *numbers], keywords=[]):
            return Term(POLY, (_read(of, text),), Poly.of_numbers(*map(ast.literal_eval, numbers)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return Term(name, tuple(_read(a, text) for a in args))
    raise ValueError(f"cannot read {ast.unparse(node)!r} in {text!r}")


def _whole(term: Term) -> bool:
    return term.op == CONST and term.value.denominator == 1


def power(base: Term, exponent: Term) -> Term:
    """Power: a product where the exponent is 1, 2, 3 or 4, else ATen's `pow`."""
    if exponent.op == CONST and exponent.value in (1, 2, 3, 4):
        square = Term("mul", (base, base))
        cube = Term("mul", (base, square))
        return [base, square, cube, Term("mul", (square, square))][int(exponent.value) - 1]
    return Term("pow", (base, exponent))


def show(term: Term) -> str:
    """Term as text that `parse` reads."""
    if term.op in (VAR, NAMED):
        return str(term.value)
    if term.op == CONST:
        return _number(term.value)
    if term.op == POLY:
        return f"poly({', '.join([show(term.args[0]), *map(repr, term.value.numbers)])})"
    if term.op == "neg" and term.args[0].op != CONST:
        return f"-{_operand(term.args[0])}"
    if term.op in _INFIX and not (term.op == "div" and all(map(_whole, term.args))):
        left, right = term.args
        return f"{_operand(left)} {_INFIX[term.op]} {_operand(right)}"
    return f"{term.op}({', '.join(map(show, term.args))})"


def _operand(term: Term) -> str:
    bare = term.op in (VAR, NAMED, POLY) or (term.op not in _INFIX and term.op not in ("neg", CONST))
    whole = term.op == CONST and term.value >= 0 and "/" not in _number(term.value)
    return show(term) if bare or whole else f"({show(term)})"


def _number(value: Fraction) -> str:
    if value.denominator == 1 and abs(value) < 10**16:
        return str(value.numerator)
    decimal = repr(float(value))
    return decimal if Fraction(decimal) == value else f"{value.numerator}/{value.denominator}"


@dataclass(frozen=True, slots=True)
class Poly:
    """t^power · P(u) with t = (x − centre) − rest, and u = t² if the function is even or odd about the centre, else t.

    The constant of P carries more digits than the type has: `tail` is its rounding error. Near the centre P is the
    constant plus little, so the error of its sum is that of a single addition, half an ulp, and little more.

    Attributes:
        coefficients: coefficients of P, from the constant up.
        power: the order of the zero at the centre; negative for a pole.
        even: whether u = t².
        centre, rest: the centre as a sum of two floats.
    """

    coefficients: tuple[float, ...]
    power: int
    even: bool
    centre: float = 0.0
    rest: float = 0.0
    tail: float = 0.0

    def run(self, x: Tensor) -> Tensor:
        """Evaluate t^power · (c₀ + (tail + u (c₁ + u (c₂ + …)))) by Horner's rule."""
        # x − centre is exact within a factor of 2 of the centre (Sterbenz' lemma), so t has the rounding of `rest`
        # alone: x − c, with c rounded, would be wrong by that at a root c, where all digits of the result depend on it
        t = x if self.centre == 0.0 and self.rest == 0.0 else (x - self.centre) - self.rest
        u = t * t if self.even else t
        value = torch.full_like(t, self.coefficients[-1])
        for c in self.coefficients[-2:0:-1]:
            value = value * u + c
        if len(self.coefficients) > 1:
            value = (value * u + self.tail) + self.coefficients[0]
        for _ in range(abs(self.power)):
            value = value * t if self.power > 0 else value / t
        return value

    @property
    def cost(self) -> float:
        """Approximate cost in additions."""
        return 2.0 * len(self.coefficients) + abs(self.power) + 2 * (self.centre != 0)

    @property
    def numbers(self) -> tuple[float, ...]:
        """The polynomial as numbers: power, even, centre, rest, tail, coefficients."""
        return (self.power, int(self.even), self.centre, self.rest, self.tail, *self.coefficients)

    @classmethod
    def of_numbers(
        cls, power: float, even: float, centre: float, rest: float, tail: float, *coefficients: float
    ) -> Poly:
        """Polynomial of these numbers."""
        return cls(tuple(map(float, coefficients)), int(power), bool(even), float(centre), float(rest), float(tail))
