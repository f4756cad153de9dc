"""Terms as straight-line programs over balls: every subterm once, operands first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from pullback.errors import FormulaError
from pullback.ops.constants import CONSTANTS
from pullback.ops.registry import OPS
from pullback.stable.complements import resolved
from pullback.stable.precision import Ball, ball_type, precision
from pullback.stable.term import NAMED, VAR, Term, topological

Column: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.object_]]"


class Program:
    """Some terms, compiled. Values are balls, of conditions truth values (`balls`), at the precision of the moment.

    Attributes:
        terms: every subterm, operands first, without vanishing differences (`complements`); its place in this list is
            its slot.
        roots: the slots of the terms that were asked for.
        operands: of every slot, the slots of its operands.
        steps: of every slot that has operands, the slot, its function on balls and its operands.
    """

    def __init__(self, roots: Sequence[Term]) -> None:
        """Compile some terms.

        Raises:
            FormulaError: for an op that is not in the table.
            RunnerError: if python-flint is not installed.
        """
        roots = resolved(roots)
        self.terms = topological(roots)
        slots = {term: slot for slot, term in enumerate(self.terms)}
        self.roots = [slots[root] for root in roots]
        self.operands = [tuple(slots[a] for a in term.args) for term in self.terms]
        self._variables = [(slot, term.value) for slot, term in enumerate(self.terms) if term.op == VAR]
        self.steps = [(slot, _function(t), self.operands[slot]) for slot, t in enumerate(self.terms) if t.args]
        self._constants: dict[int, list[tuple[int, Ball]]] = {}
        ball_type()

    def at(self, point: Mapping[str, Ball]) -> list[Any]:
        """Return the value of every slot at one point."""
        values: list[Any] = [None] * len(self.terms)
        for slot, value in self._enclosed():
            values[slot] = value
        for slot, name in self._variables:
            values[slot] = point[name]
        for slot, function, operands in self.steps:
            values[slot] = function(*[values[o] for o in operands])
        return values

    def columns(self, points: Mapping[str, Column], wanted: np.ndarray) -> list[Column]:
        """Return the value of every slot at many points, computed only where a root that is wanted needs it.

        Args:
            points: of every variable, its balls.
            wanted: for every root and point, whether it is wanted. Other entries of the columns are undefined.
        """
        count = wanted.shape[1]
        needed = self._needed(wanted)
        columns: list[Column] = [np.empty(0, object)] * len(self.terms)
        for slot, value in self._enclosed():
            columns[slot] = np.full(count, value, object)
        for slot, name in self._variables:
            columns[slot] = points[name]
        for slot, function, operands in self.steps:
            ahead = [columns[o] for o in operands]
            if needed[slot].all():
                columns[slot] = np.fromiter(map(function, *ahead), object, count)
            else:
                some = np.flatnonzero(needed[slot])
                columns[slot] = np.empty(count, object)
                columns[slot][some] = np.fromiter(map(function, *(a[some] for a in ahead)), object, len(some))
        return columns

    def _needed(self, wanted: np.ndarray) -> np.ndarray:
        needed = np.zeros((len(self.terms), wanted.shape[1]), bool)
        for slot, mask in zip(self.roots, wanted, strict=True):
            needed[slot] |= mask
        for slot in reversed(range(len(self.terms))):
            for operand in self.operands[slot]:
                needed[operand] |= needed[slot]
        return needed

    def _enclosed(self) -> list[tuple[int, Ball]]:
        bits = precision()
        if bits not in self._constants:
            self._constants[bits] = [
                (slot, constant(term)) for slot, term in enumerate(self.terms) if not term.args and term.op != VAR
            ]
        return self._constants[bits]


def constant(leaf: Term) -> Ball:
    """Return the enclosure of a constant."""
    ball = ball_type()
    value: Ball = (
        CONSTANTS[leaf.value](ball) if leaf.op == NAMED else ball(leaf.value.numerator) / leaf.value.denominator
    )
    return value


def _function(term: Term) -> Callable[..., Any]:
    if term.op not in OPS:
        raise FormulaError(f"{term.op} is not in the table of pointwise ops: it has no exact value.")
    return OPS[term.op].ball


def straight_line(roots: Sequence[Term]) -> Callable[[Mapping[str, Ball]], list[Any]]:
    """Return the function from the balls of the variables to those of some terms, at the current working precision.

    Raises:
        FormulaError: for an op that is not in the table.
        RunnerError: if python-flint is not installed.
    """
    program = Program(roots)

    def run(point: Mapping[str, Ball]) -> list[Any]:
        values = program.at(point)
        return [values[slot] for slot in program.roots]

    return run
