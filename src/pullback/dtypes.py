"""Which dtypes have a derivative."""

from __future__ import annotations

import torch
from torch import Tensor


def has_derivative(tensor: Tensor) -> bool:
    """Whether a tensor holds real or complex numbers; integers and bools have no derivative."""
    return tensor.is_floating_point() or tensor.is_complex()


def is_continuous(dtype: torch.dtype) -> bool:
    """Whether a dtype is one of real or complex numbers."""
    return dtype.is_floating_point or dtype.is_complex
