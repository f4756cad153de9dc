"""Jumps of a gradient: at kinks of the forward, located to the last bit."""

from __future__ import annotations

import numpy as np
import torch

from pullback.check.numeric.elementwise import Columns, Elementwise
from pullback.stable.formats import Floats, format_of, widened

_FORM = format_of(torch.float64)
_HALF_WIDTH, _GRID = 16.0, 1024
_PLACES, _PARTS, _ROUNDS = 12, 16, 16
_RELEVANT = 1e-3
"""A jump is at least this part of the largest gradient."""


def jumps(function: Elementwise, by: str, beside: dict[str, float]) -> list[tuple[float, float]]:
    """Return pairs of neighbouring float64 numbers between which the gradient by one input jumps.

    Args:
        function: the subject.
        by: the moving input, from -16 to 16.
        beside: the values of the others.
    """

    def gradient(x: Floats) -> Floats:
        at: Columns = {name: x if name == by else np.full(len(x), beside[name]) for name in function.names}
        return widened(function.run(torch.float64, at)[1 + function.names.index(by)])

    # Uneven, so that no whole number and no simple fraction is met by chance.
    x = np.linspace(-_HALF_WIDTH, _HALF_WIDTH * 1.0007, _GRID) + 0.00137
    slope = gradient(x)
    finite = np.isfinite(slope)
    if not finite.any():
        return []
    height = np.nan_to_num(np.abs(np.diff(slope)), nan=0.0, posinf=0.0)
    least = _RELEVANT * float(np.abs(slope[finite]).max())
    places = [int(k) for k in np.argsort(-height)[:_PLACES] if height[k] > least]
    if not places:
        return []
    low, high = _FORM.ordinal(x[places]), _FORM.ordinal(x[[k + 1 for k in places]])
    rows = np.arange(len(places))
    for _ in range(_ROUNDS):
        width, parts = (high - low)[:, None], np.arange(_PARTS + 1)
        # not width * parts // _PARTS: from -16 to 16 there are almost 2^63 numbers
        grid = low[:, None] + width // _PARTS * parts + width % _PARTS * parts // _PARTS
        slopes = gradient(_FORM.at_ordinal(grid.ravel())).reshape(grid.shape)
        steps = np.nan_to_num(np.abs(np.diff(slopes, axis=1)), nan=0.0, posinf=0.0)
        k = np.argmax(steps, axis=1)
        low, high, height = grid[rows, k], grid[rows, k + 1], steps[rows, k]
    ends = _FORM.at_ordinal(low), _FORM.at_ordinal(high)
    found = [(float(a), float(b)) for a, b, h in zip(*ends, height, strict=True) if h > least]
    return sorted(set(found))
