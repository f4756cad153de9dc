"""Dtypes that have a derivative."""

from __future__ import annotations

import torch
from torch import Tensor


def has_derivative(tensor: Tensor) -> bool:
    """Whether a tensor holds real or complex numbers, and so has a derivative; integers and bools have none."""
    return tensor.is_floating_point() or tensor.is_complex()


def is_continuous(dtype: torch.dtype) -> bool:
    """Whether a dtype holds real or complex numbers, and so has a derivative."""
    return dtype.is_floating_point or dtype.is_complex


def is_opaque(tensor: Tensor) -> bool:
    """Whether a tensor holds floats of a byte: PyTorch stores and converts these, and does not compute with them."""
    return tensor.is_floating_point() and tensor.dtype.itemsize == 1


def has_reals(tensor: Tensor) -> bool:
    """Whether a tensor holds real or complex numbers that PyTorch computes with."""
    return has_derivative(tensor) and not is_opaque(tensor)


def has_integers(tensor: Tensor) -> bool:
    """Whether a tensor holds integers or bools."""
    return not has_derivative(tensor)
