"""The smallest example of a context's fault, for contexts that are too slow to run again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from pullback.check.case import Case
from pullback.check.cases.sizes import resized
from pullback.check.contexts.transforms import EagerReference, setting_of
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.state import Audit

_SIZES = (1, 2)


def on_smallest(
    audit: Audit, setting: EagerReference, found: Finding, find: Callable[[EagerReference], Finding | None]
) -> Finding:
    """Return the finding on the first tiny example with one as severe as `found`, or else `found` itself."""
    for case in _tiny(setting.case):
        small = setting_of(audit.subject, case)
        if small is None or all(g is None or not bool(g.any()) for g in small.gradients):
            continue  # with nothing to lose, nothing is lost
        again = find(small)
        return again if again is not None and again.severity == found.severity else found
    return found


def _tiny(case: Case) -> Iterator[Case]:
    sizes = {size for value in case.values if isinstance(value, Tensor) for size in value.shape if size > 1}
    for size in _SIZES:
        if any(old > size for old in sizes):
            yield resized(case, {old: size for old in sizes if old > size}).with_values({}, case.label)
