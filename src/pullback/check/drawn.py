"""The audit in depth: inputs that hypothesis draws, and the smallest of them on which a gradient is wrong."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Collection
from random import Random

from pullback.check.case import Case
from pullback.check.cases.layouts import contiguous
from pullback.check.clock import Stopwatch
from pullback.check.derivative.compare_input import MAX_ELEMENTS
from pullback.check.derivative.first_order import FirstOrder
from pullback.check.facts import ExampleFacts
from pullback.check.trial import Raised
from pullback.check.variants import constant_inputs
from pullback.errors import OptionError

_MOST = 300
"""Inputs that are drawn, unless the budget is spent before."""
_FEW = 6
"""Number of elements compared on a simpler input, once one is wrong: comparing all takes most of the time."""


def require_hypothesis() -> None:
    """Raise without hypothesis.

    Raises:
        OptionError: if it is not installed.
    """
    if importlib.util.find_spec("hypothesis") is None:
        raise OptionError("deep draws inputs with hypothesis, which is not installed: pip install 'pullback[deep]'")


def smallest_drawn(audit: ExampleFacts, settled: Collection[int]) -> FirstOrder | None:
    """Return the comparison on the smallest drawn input with a wrong gradient; `None` if there is none.

    The draws depend on the audit's seed alone, their number on the budget, all of which may be spent a second time.

    Args:
        audit: of the subject.
        settled: the inputs, by order, that need no comparison.
    """
    import hypothesis  # here, since only audits in depth need it
    from hypothesis.configuration import set_hypothesis_home_dir
    from hypothesis.errors import HypothesisException

    from pullback.check.cases.strategies import cases_like

    tried = _Tried(audit, settled)
    settings = hypothesis.settings(
        database=None,
        max_examples=_MOST,
        deadline=None,
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
    )
    set_hypothesis_home_dir(os.devnull)  # where no folder can be made; by default it leaves one where it runs
    cases = cases_like(audit.base, constant_inputs(audit))
    try:
        hypothesis.find(cases, tried.is_wrong, settings=settings, random=Random(audit.options.seed))
    except HypothesisException:  # none found; or out of time, which it takes for a flaky test
        pass
    finally:
        set_hypothesis_home_dir(None)
    return tried.found


class _Tried:
    """Record of the drawn inputs.

    Attributes:
        found: the last comparison that is wrong; hypothesis moves on to simpler inputs only.
    """

    def __init__(self, audit: ExampleFacts, settled: Collection[int]) -> None:
        self._audit, self._settled = audit, settled
        self._clock = Stopwatch()
        self.found: FirstOrder | None = None

    def is_wrong(self, case: Case) -> bool:
        """Whether a gradient is wrong on a case, which is as good an input as those that were."""
        audit = self._audit
        worse = case.doubtful and self.found is not None and not self.found.case.doubtful
        is_over = self._clock.seconds() > audit.options.budget
        if worse or is_over or not case.is_variant or audit.leaves_out(case):
            return False
        try:
            with audit.events.of_first_order(case.describe(), audit.subject, case):
                result = audit.compare(
                    case,
                    numeric=self._numeric(case),
                    settled=self._settled,
                    elements=MAX_ELEMENTS if self.found is None else _FEW,
                )
        except Raised:
            return False
        if result is None or not result.wrong:
            return False
        self.found = result
        return True

    def _numeric(self, case: Case) -> Case | None:
        """Return the case on which the forward is sampled: dense, in the dtypes of the example where it takes these."""
        if all(t.is_contiguous() for t in case.tensors):
            return None
        dense = contiguous(case)
        return self._audit.widened(dense) or dense
