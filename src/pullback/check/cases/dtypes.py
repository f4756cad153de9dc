"""From one working example to others in other dtypes, wider, narrower and complex."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.check.case import Case, is_differentiable
from pullback.dtypes import has_derivative


def other_dtypes(case: Case) -> Iterator[Case]:
    """Yield the case in the other floating (or complex) dtypes, with rounded values."""
    for real, compl in (
        (torch.float32, torch.complex64),
        (torch.bfloat16, None),
        (torch.float16, None),
        (torch.float64, torch.complex128),
    ):
        if any(case.values[p].is_complex() for p in case.wrt) and compl is None:
            continue
        changed = {
            p: v.to(compl if v.is_complex() else real)
            for p, v in enumerate(case.values)
            if isinstance(v, Tensor) and has_derivative(v)
        }
        if any(changed[p].dtype != case.values[p].dtype for p in case.wrt):
            yield case.with_values(changed, str(real).removeprefix("torch."))


def as_dtypes_of(case: Case, other: Case) -> Case:
    """Return the floating and complex values of `case` in the dtypes of `other`, an example of the same call."""
    if len(case.values) != len(other.values):
        return case
    return case.with_values(
        {
            p: v.to(like.dtype)
            for p, (v, like) in enumerate(zip(case.values, other.values, strict=True))
            if is_differentiable(v) and is_differentiable(like) and v.is_complex() == like.is_complex()
        }
    )


def widened(case: Case) -> Case:
    """Return the case with its floating tensors in float64 and its complex ones in complex128."""
    wide = {
        p: v.to(torch.complex128 if v.is_complex() else torch.float64)
        for p, v in enumerate(case.values)
        if isinstance(v, Tensor) and has_derivative(v)
    }
    return case.with_values({p: v for p, v in wide.items() if v.dtype != case.values[p].dtype})


def made_complex(case: Case) -> Case:
    """Return the case with complex values in place of the real differentiated ones."""
    return case.map_inputs(
        lambda t: torch.complex(t, (t + 0.7).sin()) if t.is_floating_point() else t, "complex values"
    )
