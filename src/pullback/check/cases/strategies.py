"""Inputs that differ from the working example in several ways at once, as a hypothesis strategy.

The variants of `check/variants.py` change one thing at a time, the same ones in every run. Faults that need a
combination, such as an odd size in a strided float32 tensor, are searched for here. Each choice starts with the
simplest, to which hypothesis shrinks: small sizes, the example's own values, dtype and layout.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from pullback.check.case import Case
from pullback.check.cases.layouts import LAYOUTS, other_dtypes
from pullback.check.cases.sizes import resized
from pullback.check.cases.structure import is_structured
from pullback.check.cases.values import CONSTANTS, ORDINARY, shared

_MOST = 17
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
    same = draw(st.sampled_from([None, *shared(case, apart)]))
    if same is not None:  # in another dtype or layout they would be two
        return replace(same, label=", ".join([*labels, same.label]))
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
    present = sorted({s for v in case.values if isinstance(v, Tensor) for s in v.shape if s > 0})
    change = {}
    for size in present:
        fixed = any(size in v.shape and is_structured(v) for v in case.tensors)
        new = draw(st.integers(1, size if fixed else _MOST))
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
