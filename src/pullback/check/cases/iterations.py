"""Iterative functions: how to recognise them, and their calls with ten times the iterations.

A result that changes with more iterations was not converged.
"""

from __future__ import annotations

import re
from typing import Any

from pullback import _torch
from pullback.check.case import Case
from pullback.check.subject import Subject
from pullback.check.trial import Raised, forward

_COUNT = re.compile(r"^(n|num|max)?_?(iters?|iterations?|n_?iters?|steps)$|^(n|num|max)_?(its?|steps)$", re.IGNORECASE)
# An iteration that converges linearly has an error of ρⁿ after n steps. Ten times as many raise that to the power of
# ten: from 10 % to 10⁻¹⁰, below the tolerance of a comparison.
_TIMES = 10
_FACTORS = (1.0, 0.875, 0.5, 1.25)


def more_iterations(case: Case) -> Case | None:
    """Return the case with ten times the iterations; `None` if no argument is their number."""
    counts = {
        position: _TIMES * value
        for position, value in enumerate(case.values)
        if type(value) is int and value > 0 and _COUNT.match(case.names[position])
    }
    return case.with_values(counts) if counts else None


class _Count(_torch.DispatchMode):
    """Counts the operations that run inside of it."""

    count = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return op(*args, **(kwargs or {}))


def iterates(subject: Subject, case: Case, variant: Case) -> bool:
    """Whether the number of operations of a forward depends on its values: it iterates to a tolerance.

    Args:
        subject: the function.
        case: an example, run unchanged and with scaled values.
        variant: another one; it counts if its tensors have the same shapes and its flags and words are the same: with
            others, other operations run.
    """
    others = [case.map_inputs(lambda t, by=factor: by * t, case.label) for factor in _FACTORS]  # type: ignore[misc]
    if [v.shape for v in variant.tensors] == [v.shape for v in case.tensors] and _options(variant) == _options(case):
        others.append(variant)
    counts = {_operations(subject, other) for other in others}
    return len(counts - {None}) > 1


def _options(case: Case) -> list[object]:
    """Return the flags and words of a call; numbers may be tolerances."""
    return [v if isinstance(v, bool | str) else None for v in case.values]


def _operations(subject: Subject, case: Case) -> int | None:
    """Count the operations of a forward; `None` if it raises."""
    with _Count() as counted:  # type: ignore[no-untyped-call]
        try:
            forward(subject, case)
        except Raised:
            return None
    return int(counted.count)
