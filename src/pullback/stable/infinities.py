"""Values at infinite inputs, which no sample contains: the values required of a form, and the piece that returns them.

PyTorch's values are the reference: where the formula as written returns a number or an infinity, a form must as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from pullback.stable import quick_points
from pullback.stable.formats import Floats, format_of, widened
from pullback.stable.piecewise import Piece, Program
from pullback.stable.quick_trial import keeps_special
from pullback.stable.sampling import Domain
from pullback.stable.term import Term, const, parse, var

_OVERFLOW = parse("exp(1000)")
"""Infinity, in every type."""


class Infinities:
    """A quantity of the formula as written, at infinite inputs of its domain and at both zeros.

    Attributes:
        points: these inputs, without NaN.
    """

    def __init__(
        self,
        names: Sequence[str],
        dtype: torch.dtype,
        domain: Domain,
        order: int,
        written: Callable[[Sequence[Tensor]], Tensor],
    ) -> None:
        columns = quick_points.special(len(names))
        limits = [domain.get(name, (-math.inf, math.inf)) for name in names]
        inside = np.logical_and.reduce(
            [(x >= low) & (x <= high) for x, (low, high) in zip(columns, limits, strict=True)]
        )
        self._names, self._dtype = names, dtype
        self.points: Mapping[str, Tensor] = {
            name: torch.from_numpy(x[inside]).to(dtype) for name, x in zip(names, columns, strict=True)
        }
        self._wanted = self._required(widened(written(list(self.points.values()))), order)

    def _required(self, written: Floats, order: int) -> Floats:
        """Return the required values, NaN where any is allowed: the sample judges finite values at finite inputs.

        At a pole a second derivative may have either sign, like a sum of poles.
        """
        infinite = np.logical_or.reduce([np.isinf(widened(x)) for x in self.points.values()])
        required = np.where(infinite | np.isinf(written), written, np.nan)
        return np.where(np.isinf(required), np.nan, required) if order == 2 else required

    def kept_by(self, computed: Tensor) -> bool:
        """Whether values at `points` equal those of the formula as written wherever these are not NaN."""
        return keeps_special(widened(computed), self._wanted, format_of(self._dtype))

    def guarded(self, program: Program, target: Term) -> Program:
        """Return a program with a last piece for infinite inputs: of one variable its limits, of several the target."""
        largest = format_of(self._dtype).largest
        sizes = [Term("abs", (var(name),)) for name in self._names]
        size = sizes[0]
        for other in sizes[1:]:
            size = Term("maximum", (size, other))
        beyond = target if len(self._names) > 1 else self._limits(var(self._names[0]))
        return Program(size, (Piece(program, largest), Piece(beyond)))

    def _limits(self, x: Term) -> Term:
        """Return the values of the formula as written at ±∞ as a term."""
        at = widened(self.points[self._names[0]])
        sides = [self._wanted[at == end] for end in (np.inf, -np.inf)]
        above, below = (_value(float(side[0]) if len(side) else math.nan, x) for side in sides)
        return Term("where", (Term("gt", (x, const(0))), above, below))


def _value(number: float, x: Term) -> Term:
    if math.isnan(number):
        return Term("sub", (x, x))  # NaN at infinity
    if math.isinf(number):
        return _OVERFLOW if number > 0 else Term("neg", (_OVERFLOW,))
    return const(number)
