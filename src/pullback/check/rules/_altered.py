"""Other values for a tensor, by which it shows whether anything depends on it."""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.dtypes import has_derivative

_FAR = 1e4


def altered(t: Tensor) -> list[Tensor]:
    """Return tensors of the same shape and dtype, none of them equal to `t`: none if there is no safe one.

    Floating ones are of other sign, zero, far out and NaN, so that a comparison with any number comes out otherwise
    for one of them. Whole numbers stay between the least and the greatest there is, since they may be indices.
    Sparse ones have the same places.
    """
    if t.layout == torch.sparse_coo and has_derivative(t):
        return [-3 * t.detach()] if bool(t.to_dense().any()) else []
    if t.layout != torch.strided or t.is_quantized or not t.numel():
        return []
    t = t.detach()
    if has_derivative(t):
        made = [-3 * t, *(torch.full_like(t, value) for value in (0.0, _FAR, -_FAR, torch.nan))]
    elif t.dtype == torch.bool:
        made = [~t]
    else:
        made = [t.max() + t.min() - t, torch.full_like(t, int(t.min())), torch.full_like(t, int(t.max()))]
    return [other for other in made if not torch.equal(other, t)]
