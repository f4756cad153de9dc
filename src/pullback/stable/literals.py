"""Numbers in a formula that were computed and rounded to float64, and holes that the rounding moves.

(eˣ − c)/(x + 4) has a removable hole at −4 if c is e⁻⁴. With c rounded to float64 it has a pole there, and the second
derivative is off by 10⁻³ at the next float32 number. The literal then differs from the author's intention.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from pullback.stable.oracle import exact
from pullback.stable.samples import Samples
from pullback.stable.term import CONST, Term, const, substitute, topological

_DIGITS = 16
"""Significant digits of a literal that nobody types."""
_MOVED = 2.0**-20
"""A relative change of the value that shows in float32."""


def moved_hole(target: Term, near: Samples) -> tuple[Term, int] | None:
    """Return a literal whose rounding changes a term near its singular points, and the sample where it does most.

    Args:
        target: the term.
        near: samples of it around these points.
    """
    for literal in _literals(target):
        rounded = const(literal.value * (1 + Fraction(1, 2**53)))
        (other,) = exact([substitute(target, {literal: rounded})], near.points)
        change = np.abs(other.high - near.exact)
        with np.errstate(invalid="ignore"):
            moved = np.where(np.isfinite(change) & (change > _MOVED * np.abs(near.exact)), change, 0.0)
        if moved.any():
            return literal, int(np.argmax(moved / np.maximum(np.abs(near.exact), np.finfo(float).tiny)))
    return None


def _literals(root: Term) -> Iterator[Term]:
    for term in topological([root]):
        text = repr(float(term.value)) if term.op == CONST else ""
        digits = text.partition("e")[0].replace(".", "").strip("-0")
        if len(digits) >= _DIGITS and term.value == Fraction(text):
            yield term
