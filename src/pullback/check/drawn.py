"""Inputs drawn by hypothesis, which differ from the working example in several ways at once, and the search in them.

The variants of `check/variants.py` change one thing at a time, the same ones in every run. Faults that need a
combination, such as an odd size in a strided float32 tensor, are searched for here. Each choice starts with the
simplest, to which hypothesis shrinks: small sizes, the example's own values, dtype and layout.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from random import Random

import hypothesis
import torch
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.errors import HypothesisException

from pullback.check.case import Case
from pullback.check.cases.layouts import LAYOUTS, contiguous, other_dtypes
from pullback.check.cases.sizes import resized
from pullback.check.cases.structure import is_structured
from pullback.check.cases.values import CONSTANTS, ORDINARY, shared
from pullback.check.clock import Stopwatch
from pullback.check.derivative.compare_input import MAX_ELEMENTS
from pullback.check.derivative.first_order import FirstOrder
from pullback.check.facts import ExampleFacts
from pullback.check.trial import Raised
from pullback.check.variants import constant_inputs

_MOST = 300
"""Inputs that are drawn, unless the budget is spent before."""
_FEW = 6
"""Number of elements compared on a simpler input, once one is wrong: comparing all takes most of the time."""
_LARGEST = 17
"""The largest size of a dimension: one more than a vector of 16 numbers holds."""


@st.composite
def cases_like(draw: st.DrawFn, base: Case, apart: Collection[int] = ()) -> Case:
    """Draw a case from a working example: sizes, values, then dtype and layouts, or one tensor passed twice.

    No tensor at a position in `apart` is passed as another argument, too.
    """
    case, labels = _sized(draw, base)
    for position in case.wrt:
        if not is_structured(case.values[position]):
            case, label = _valued(draw, case, position)
            labels += label
    twin = draw(st.sampled_from([None, *shared(case, apart)]))
    if twin is not None:  # in another dtype or layout they would be two
        return replace(twin, label=", ".join([*labels, twin.label]))
    narrow = draw(st.sampled_from([None, *other_dtypes(case)]))
    if narrow is not None:
        case = narrow
        labels.append(narrow.label)
    for position in case.wrt:
        case, label = _laid_out(draw, case, position)
        labels += label
    return replace(case, label=", ".join(labels))


def _sized(draw: st.DrawFn, case: Case) -> tuple[Case, list[str]]:
    """Draw a size for each of those that the tensors of a case have."""
    present = sorted(case.sizes)
    change = {}
    for size in present:
        fixed = any(size in v.shape and is_structured(v) for v in case.tensors)
        new = draw(st.integers(1, size if fixed else _LARGEST))
        if new != size:
            change[size] = new
    if not change:
        return case, []
    case = resized(case, change)
    return case, [case.label]


def _valued(draw: st.DrawFn, case: Case, position: int) -> tuple[Case, list[str]]:
    """Draw other values for one tensor: of another kind, or moved by up to a half."""
    t, name = case.values[position], case.names[position]
    kind = draw(st.sampled_from(["", *ORDINARY]))
    seed = draw(st.integers(0, 99))
    labels = []
    if seed:
        generator = torch.Generator().manual_seed(seed)
        factors = 1.5 - torch.rand(t.shape, generator=generator, dtype=torch.float64)
        t = (t * factors).to(t.dtype)
        labels.append(f"{name} times 0.5 to 1.5")
    if kind:
        t = ORDINARY[kind](t)
        labels.append(f"{kind} in {name}")
    # a smaller tensor may be a parameter with a restricted domain, as in `values.other_values`
    parameter = kind in CONSTANTS and t.numel() < max(v.numel() for v in case.tensors)
    return case.with_values({position: t}, doubtful=case.doubtful or parameter), labels


def _laid_out(draw: st.DrawFn, case: Case, position: int) -> tuple[Case, list[str]]:
    """Draw a layout for one tensor."""
    t = case.values[position]
    label = draw(st.sampled_from(["", *(name for name, (_, applies) in LAYOUTS.items() if applies(t))]))
    if not label:
        return case, []
    return case.with_values({position: LAYOUTS[label][0](t)}), [f"{case.names[position]} {label}"]


def smallest_drawn(audit: ExampleFacts, skip_inputs: Collection[int]) -> FirstOrder | None:
    """Return the comparison on the smallest drawn input with a wrong gradient; `None` if there is none.

    The draws depend on the audit's seed alone, their number on the budget, all of which may be spent a second time.

    Args:
        audit: the audit of the subject.
        skip_inputs: indices of the inputs that need no comparison.
    """
    tried = _Tried(audit, skip_inputs)
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

    def __init__(self, audit: ExampleFacts, skip_inputs: Collection[int]) -> None:
        self._audit, self._skip_inputs = audit, skip_inputs
        self._clock = Stopwatch()
        self.found: FirstOrder | None = None

    def is_wrong(self, case: Case) -> bool:
        """Whether a gradient is wrong on a case that is no more doubtful than those found before."""
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
                    skip_inputs=self._skip_inputs,
                    elements=MAX_ELEMENTS if self.found is None else _FEW,
                )
        except Raised:
            return False
        if result is None or not result.wrong:
            return False
        self.found = result
        return True

    def _numeric(self, case: Case) -> Case | None:
        """The case on which the forward is sampled: contiguous, in the dtypes of the example if possible."""
        if all(t.is_contiguous() for t in case.tensors):
            return None
        dense = contiguous(case)
        return self._audit.widened(dense) or dense
