"""How much an error weighs: against the size that a quantity has at the numbers that people pass."""

from __future__ import annotations

import numpy as np
import torch

from pullback.check.numeric.elementwise import Columns
from pullback.check.numeric.onset import ORDINARY
from pullback.check.numeric.sweep import Quantity
from pullback.check.numeric.truth import usual
from pullback.stable.formats import Floats, Mask

STEP = 0.25
"""A value that changes by more than this part of itself from one input to the next is at a step, a root, or chaos."""


def weight(quantity: Quantity, at: Columns) -> Floats:
    """Return the errors relative to the true value or, where that is larger, to its usual magnitude.

    The derivative 6e-8 of tanh at 9 may as well be 0, since elsewhere in a batch it is about 0.1. But 0.5 may not.
    """
    true = quantity.truth.high
    inside = np.isfinite(true) & common(at)
    size = usual(true, at)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.abs(quantity.computed.to(torch.float64).numpy() - true)
        relative = error / np.maximum(np.abs(true), size)
    return np.where(inside, np.nan_to_num(relative, nan=0.0, posinf=0.0), 0.0)


def common(at: Columns) -> Mask:
    """Return the points whose numbers are 0, or of a magnitude from 1e-8 to 10 000."""
    least, most = ORDINARY
    inside: Mask = np.all([(x == 0) | ((np.abs(x) >= least) & (np.abs(x) <= most)) for x in at.values()], axis=0)
    return inside
