"""The accuracy of a subject: facts that are computed on demand, and the data of the plots that show them."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pullback.check.cases.sizes import partly_filled
from pullback.check.clock import Stopwatch
from pullback.check.derivative.oracle import SIGNIFICANT, differentiate
from pullback.check.facts import ExampleFacts
from pullback.check.numeric.elementwise import Columns, Elementwise, elementwise
from pullback.check.numeric.scaled import Scaled, scaled
from pullback.check.numeric.sweep import Sweeper, SweptQuantity
from pullback.check.trial import Raised, as_real
from pullback.report.model import GradientCurve, Numbers, UlpErrors
from pullback.stable.formats import Floats, Mask


@dataclass(frozen=True)
class Sweep:
    """An elementwise subject over the whole range of a dtype.

    Attributes:
        at: the points.
        quantities: the value, then its derivative by each input that varies.
    """

    at: Columns
    quantities: list[SweptQuantity]


_SHARE = 0.5
"""Share of the budget for the scaled examples of interpreted kernels."""


class AccuracyFacts:
    """Facts about the accuracy of one subject."""

    def __init__(self, facts: ExampleFacts) -> None:
        self._facts = facts
        self._sweeps: dict[torch.dtype, Sweep | None] = {}

    @functools.cached_property
    def elementwise(self) -> Elementwise | None:
        """The subject as an elementwise function; `None` if it is none, draws random numbers, or has no derivative."""
        facts = self._facts
        if facts.draws or facts.backward_draws or not facts.backward_works:
            return None
        return elementwise(facts.subject, facts.base)

    @functools.cached_property
    def sweeper(self) -> Sweeper | None:
        """Measures the elementwise subject; `None` if there is none."""
        return None if self.elementwise is None else Sweeper(self.elementwise, self._facts.options.seed)

    @functools.cached_property
    def scaled(self) -> list[Scaled]:
        """The example made larger, smaller and moved, of a subject that mixes elements; the example itself first."""
        facts = self._facts
        if facts.draws or facts.backward_draws or not facts.backward_works or self.sweeper is not None:
            return []
        found, clock = [], Stopwatch()
        for example in (facts.base, *partly_filled(facts.base, facts.blocks)):
            for trial in scaled(facts.subject, example, facts.leaves_out):
                facts.events.beat()
                found.append(trial)
                if facts.subject.is_interpreted and clock.seconds() > _SHARE * facts.options.budget:
                    return found
        return found if found and found[0].amount == 1 else []

    def sweep(self, dtype: torch.dtype) -> Sweep | None:
        """Return the measurement in one dtype; `None` where there is none."""
        if dtype not in self._sweeps:
            self._facts.events.beat()
            self._sweeps[dtype] = self._measured(dtype)
        return self._sweeps[dtype]

    def known(self, dtype: torch.dtype) -> Sweep | None:
        """Return the measurement in one dtype that some rule has asked for; `None` if none did."""
        return self._sweeps.get(dtype)

    def _measured(self, dtype: torch.dtype) -> Sweep | None:
        if self.sweeper is None:
            return None
        try:
            at = self.sweeper.points(dtype)
            return Sweep(at, self.sweeper.measure(dtype, at))
        except Raised:
            return None


_LINES: tuple[tuple[float, float], ...] = (
    (-4.0, 4.0),
    (2.0**-4, 4.0),
    (2.0**-4 - 1, 1 - 2.0**-4),
    (2.0**-4, 1 - 2.0**-4),
)
"""Intervals for the plot of a gradient; the first on which the forward runs is taken."""
_POINTS = 65
_STEP = 2.0**-7
"""The first step of the numeric derivative is about a sixteenth of this: 5e-4, where points are 0.01 or more apart."""
_OCTAVES = 2
"""Octaves per part of the range."""
_LEAST, _MOST = -24, 24
"""Powers of two between which errors are drawn."""


def slopes(function: Elementwise) -> Iterator[GradientCurve]:
    """Yield the gradient by each input that varies, along a line through the example."""
    for by in function.names:
        for low, high in _LINES:
            grid = np.linspace(low, high, _POINTS)
            try:
                yield _slope(function, by, grid)
                break
            except (Raised, RuntimeError, ValueError):
                continue


def _slope(function: Elementwise, by: str, grid: Floats) -> GradientCurve:
    def at(x: Floats) -> Columns:
        return {name: x if name == by else np.full(len(x), function.example(name)) for name in function.names}

    def curve(t: float) -> Tensor:
        return as_real(function.values(torch.float64, at(grid + t * _STEP)))

    got = function.run(torch.float64, at(grid))[1 + function.names.index(by)]
    found = differentiate(curve)
    wide = SIGNIFICANT * found.bar
    low, high = (torch.where(found.valid, side, torch.nan) / _STEP for side in (found.low - wide, found.high + wide))
    return GradientCurve(by, _plain(grid), _plain(got.tolist()), _plain(low.tolist()), _plain(high.tolist()))


def ulp_errors(dtype: torch.dtype, sweep: Sweep) -> Iterator[UlpErrors]:
    """Yield the errors in ulps of value and gradient of a function of one input."""
    if len(sweep.at) > 1:
        return
    (x,) = sweep.at.values()
    for quantity in sweep.quantities:
        if quantity.exact or dtype != torch.float64:  # float64 against itself shows nothing
            parts = list(_parts(x, quantity, quantity.within_range(dtype)))
            if parts:
                at, ulp = zip(*((part.at, part.ulp) for part in parts), strict=True)
                name = str(dtype).removeprefix("torch.")
                yield UlpErrors(quantity.label, name, _plain(at), _plain(ulp), quantity.exact)


@dataclass(frozen=True, slots=True)
class _WorstError:
    at: float
    ulp: float


def _parts(x: Floats, quantity: SweptQuantity, inside: Mask) -> Iterator[_WorstError]:
    """Yield the largest error in each part of the range, from the most negative on."""
    found = quantity.errors
    shown = inside & (found.spurious | (found.stated & ~found.subnormal))
    worst = np.where(found.spurious, np.inf, found.ulp)
    with np.errstate(divide="ignore"):
        power = np.clip(np.floor(np.log2(np.abs(x)) / _OCTAVES), _LEAST // _OCTAVES - 1, _MOST // _OCTAVES)
    shown &= power < _MOST // _OCTAVES
    part = np.sign(x) * (power - _LEAST // _OCTAVES + 1)
    for interval in np.unique(part[shown]):
        here = np.flatnonzero(shown & (part == interval))
        index = here[np.argmax(worst[here])]
        yield _WorstError(float(x[index]), float(worst[index]))


def _plain(numbers: Iterable[float]) -> Numbers:
    return tuple(float(f"{x:.7g}") if math.isfinite(x) else None for x in map(float, numbers))
