"""Tensors that a function keeps for its backward: whose memory they are, their bytes, and other values for them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pullback.check.trial import ForwardRun
from pullback.dtypes import has_reals, is_opaque
from pullback.report.model import Evidence

Origin = Literal["an input", "an output", "computed"]


def origin(t: Tensor, run: ForwardRun) -> Origin:
    """Whose memory a tensor is in."""
    where = t.untyped_storage().data_ptr()
    inputs = [*run.inputs, *(a for a in run.arguments if isinstance(a, Tensor))]
    if any(where == x.untyped_storage().data_ptr() for x in inputs):
        return "an input"
    return "an output" if any(where == o.untyped_storage().data_ptr() for o in run.outputs) else "computed"


def bytes_kept(got: int, needed: int = 0) -> Evidence:
    """Return the bytes of memory that is kept, and those that the backward needs of it."""
    return Evidence(needed, got, where="kept for the backward", unit="bytes")


_FAR = 1e4
_SIGN = 0x80
"""The bit of the sign in a byte."""


def altered(t: Tensor) -> list[Tensor]:
    """Other tensors of the same shape and dtype; none if no other value is safe.

    Floating ones are of other sign, zero, far out and NaN, so that a comparison with any number comes out otherwise
    for one of them. Whole numbers stay between the least and the greatest there is, since they may be indices.
    Sparse ones have the same places. Floats of a byte are zero, then of other sign.
    """
    if t.layout == torch.sparse_coo and has_reals(t):
        return [-3 * t.detach()] if bool(t.to_dense().any()) else []
    if t.layout != torch.strided or t.is_quantized or not t.numel():
        return []
    t = t.detach()
    if is_opaque(t):
        return _altered_bytes(t)
    if has_reals(t):
        made = [-3 * t, *(torch.full_like(t, value) for value in (0.0, _FAR, -_FAR, torch.nan))]
    elif t.dtype == torch.bool:
        made = [~t]
    else:
        made = [t.max() + t.min() - t, torch.full_like(t, int(t.min())), torch.full_like(t, int(t.max()))]
    return [other for other in made if not torch.equal(other, t)]


def _altered_bytes(t: Tensor) -> list[Tensor]:
    plain = t.contiguous().view(torch.uint8)
    made = [torch.zeros_like(plain), plain ^ _SIGN]
    return [other.view(t.dtype) for other in made if not torch.equal(other, plain)]
