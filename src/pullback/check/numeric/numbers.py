"""Facts about a subject's accuracy, each computed once, on demand."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pullback.check.numeric.elementwise import Columns, Elementwise, elementwise
from pullback.check.numeric.scaled import Scaled, scaled
from pullback.check.numeric.sweep import Quantity, Sweeper
from pullback.check.trial import Raised

if TYPE_CHECKING:
    from pullback.check.facts import ExampleFacts


@dataclass(frozen=True)
class Sweep:
    """An elementwise subject over the whole range of a dtype.

    Attributes:
        at: the points.
        quantities: the value, then its derivative by each input that varies.
    """

    at: Columns
    quantities: list[Quantity]


class Numbers:
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
        found = []
        for trial in scaled(facts.subject, facts.base, facts.leaves_out):
            facts.events.beat()
            found.append(trial)
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
