"""Calls of iterative functions with ten times the iterations: what changes then was not converged."""

from __future__ import annotations

import re

from pullback.check.case import Case

_COUNT = re.compile(r"^(n|num|max)?_?(iters?|iterations?|n_?iters?|steps)$|^(n|num|max)_?(its?|steps)$", re.IGNORECASE)
_TIMES = 10


def more_iterations(case: Case) -> Case | None:
    """Return the case with ten times the iterations; `None` if no argument says how many there are."""
    counts = {
        position: _TIMES * value
        for position, value in enumerate(case.values)
        if type(value) is int and value > 0 and _COUNT.match(case.names[position])
    }
    return case.with_values(counts) if counts else None
