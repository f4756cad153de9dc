"""Values and derivatives of an elementwise subject at points over the whole range of a dtype, with the true ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pullback.check.numeric.elementwise import Columns, Elementwise
from pullback.check.numeric.truth import Exact, Wider, believable, terms
from pullback.check.trial import Raised
from pullback.errors import PullbackError
from pullback.stable.formats import Floats, Mask, format_of
from pullback.stable.oracle import Truth
from pullback.stable.sampling import points
from pullback.stable.term import Term
from pullback.stable.ulp import Errors, errors

_POINTS = 3000
_STEPS = (-1.0, -0.83, -0.59, -0.37, -0.11, 0.137, 0.29, 0.53, 0.71, 1.0)
"""Uneven and many: where values are as good as random from one number to the next, as sin(1e30) is, some differ."""
_DOMAINS: tuple[tuple[float, float], ...] = (
    (-np.inf, np.inf),
    (0.0, np.inf),
    (2.0**-126, np.inf),
    (-1.0, 1.0),
    (0.0, 1.0),
    (2.0**-20, 1 - 2.0**-10),
)
"""Where a forward that raises at some values is measured: the first that it takes."""


@dataclass(frozen=True)
class Quantity:
    """One quantity at every point of a sweep.

    Attributes:
        by: the input that it is differentiated by; empty for the value itself.
        computed: the subject's results.
        truth: the true values.
        errors: of the results.
        exact: whether the truth is the oracle's; else it is a float64 run of the subject.
        formula: the term of the value, if known.
    """

    by: str
    computed: Tensor
    truth: Truth
    errors: Errors
    exact: bool
    formula: Term | None

    @property
    def label(self) -> str:
        """Name of the quantity in messages."""
        return f"gradient of {self.by}" if self.by else "value"

    def within_range(self, dtype: torch.dtype) -> Mask:
        """Return where there is a true value, and a dtype holds it."""
        inside: Mask = np.abs(self.truth.high) <= torch.finfo(dtype).max
        return inside


class Sweeper:
    """Measures one elementwise subject.

    Attributes:
        function: the subject.
        terms: of the value and its derivatives, where the forward is a pointwise formula; else empty.
    """

    def __init__(self, function: Elementwise, seed: int = 0) -> None:
        self.function = function
        self._seed = seed
        self._wider = Wider(function)
        self.terms: list[Term] = []
        self._trusted = [False] * (1 + len(function.names))
        found = terms(function)
        if found is not None:
            self._trust(found)

    def _trust(self, found: list[Term]) -> None:
        try:
            at = self.points(torch.float64)
            self._trusted = believable(Exact(found).truths(at, torch.float64), self.function, at)
        except (PullbackError, Raised):  # an op without an exact value, or no ball arithmetic on this machine
            return
        self.terms = found

    def points(self, dtype: torch.dtype) -> Columns:
        """Return points over the whole range, in a domain that the forward takes.

        Raises:
            Raised: if it takes none that is tried.
        """
        last: Raised | None = None
        for low, high in _DOMAINS:
            domain = dict.fromkeys(self.function.names, (low, high))
            at = _thinned(points(self.function.names, dtype, self._seed, domain), low, high, torch.finfo(dtype).tiny)
            try:
                self.function.run(dtype, at)
            except Raised as error:
                last = error
                continue
            return at
        assert last is not None
        raise last

    def measure(self, dtype: torch.dtype, at: Columns) -> list[Quantity]:
        """Return the value, and the derivative by each input, at some points.

        Raises:
            Raised: if the subject refuses one of them.
        """
        computed = self.function.run(dtype, at)
        truths, exact = self.truths(dtype, at)
        return [
            Quantity(by, got, truth, errors(got, truth), known, self.terms[0] if self.terms else None)
            for k, (by, got, truth, known) in enumerate(
                zip(("", *self.function.names), computed, truths, exact, strict=True)
            )
        ]

    def truths(self, dtype: torch.dtype, at: Columns) -> tuple[list[Truth], list[bool]]:
        """Return the truth of each quantity, and whether it is exact."""
        wide = [] if all(self._trusted) else self._wider.truths(at, dtype)
        known = Exact(self.terms).truths(at, dtype) if any(self._trusted) else wide
        return [known[k] if sure else wide[k] for k, sure in enumerate(self._trusted)], self._trusted

    def spread(self, dtype: torch.dtype, at: Columns) -> list[Floats]:
        """Return how much the truth of each quantity changes within a unit in the last place of each input.

        An input that was rounded answers for no less. At a kink or a jump it is the height of the step.
        """
        form = format_of(dtype)
        here, _ = self.truths(dtype, at)
        most = [np.zeros(len(truth.high)) for truth in here]
        for name, x in at.items():
            unit: Floats = np.ldexp(1.0, form.ulp_exponent(x))
            for step in _STEPS:
                there, _ = self.truths(dtype, {**at, name: x + step * unit})
                for k, (a, b) in enumerate(zip(here, there, strict=True)):
                    with np.errstate(invalid="ignore"):
                        move = np.abs(a.high - b.high)
                    most[k] = np.maximum(most[k], np.where(np.isnan(move), np.inf, move))
        return most


def _thinned(at: Columns, low: float, high: float, least: float) -> Columns:
    """Return some of many points, none of them subnormal, with 0 and ±1 if they lie in the domain."""
    step = max(1, len(next(iter(at.values()))) // _POINTS)
    normal = np.all([(x == 0) | (np.abs(x) >= least) for x in at.values()], axis=0)
    marks = np.array([x for x in (0.0, -0.0, 1.0, -1.0) if low <= x <= high])
    return {name: np.concatenate([x[normal][::step], marks]) for name, x in at.items()}
