"""Where a tensor that a function keeps comes from, and how many bytes too many that is."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from pullback.check.trial import ForwardRun
from pullback.report.model import Evidence

Origin = Literal["an input", "an output", "computed"]


def origin(t: Tensor, run: ForwardRun) -> Origin:
    """Return whose memory a tensor is in."""
    where = t.untyped_storage().data_ptr()
    inputs = [*run.inputs, *(a for a in run.arguments if isinstance(a, Tensor))]
    if any(where == x.untyped_storage().data_ptr() for x in inputs):
        return "an input"
    return "an output" if any(where == o.untyped_storage().data_ptr() for o in run.outputs) else "computed"


def bytes_kept(got: int, needed: int = 0) -> Evidence:
    """Return the bytes of memory that is kept, and those that the backward needs of it."""
    return Evidence(needed, got, where="kept for the backward", unit="bytes")
