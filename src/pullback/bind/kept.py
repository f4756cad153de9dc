"""Tensors that a call keeps for its backward: checked before kernels read them again.

`x.data = other`, a hook for saved tensors and `untyped_storage().resize_()` change a tensor without a word to autograd.
A kernel takes pointers, and would read beyond the new memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.errors import DerivativeError
from pullback.plan import in_layout

Kind = tuple[Any, ...]
"""Shape, dtype, device, strides, bytes of the storage, and whether it waits to be negated."""


def kind_of(x: Tensor) -> Kind | None:
    """Return the properties of a tensor that kernels rely on; `None` if it has no strides or no storage."""
    try:
        return x.shape, x.dtype, x.device, x.stride(), x.untyped_storage().nbytes(), x.is_neg()
    except RuntimeError:
        return None


def as_kept(name: str, tensors: Sequence[Tensor], kinds: list[Kind | None]) -> Sequence[Tensor]:
    """Return tensors that kernels can read: those given, converted where they only differ in dtype or layout.

    Args:
        name: of the op, for the error.
        tensors: in the backward.
        kinds: those in the forward.

    Raises:
        DerivativeError: if one has another shape or device, or its storage is too small.
    """
    if list(map(kind_of, tensors)) == kinds:
        return tensors
    return [
        x if kind is None or kind_of(x) == kind else _converted(name, x, kind)
        for x, kind in zip(tensors, kinds, strict=True)
    ]


def _converted(name: str, x: Tensor, kind: Kind) -> Tensor:
    shape, dtype, device, *_ = kind
    both_float = x.is_floating_point() and dtype.is_floating_point
    same_numbers = x.dtype == dtype or both_float or (x.is_complex() and dtype.is_complex)
    if x.shape != shape or x.device != device or not same_numbers:
        raise DerivativeError(
            f"{name} keeps a tensor of shape {tuple(shape)}, {dtype} on {device} for its backward, and was given shape "
            f"{tuple(x.shape)}, {x.dtype} on {x.device} instead: do not set its `.data` between forward and backward, "
            "and have hooks for saved tensors return what they were given."
        )
    if type(x) in (Tensor, torch.nn.Parameter):  # else PyTorch's ops read it, as they do in a transform
        x = in_layout(x, (), is_any=True)
        x = x.contiguous() if x.dim() == 1 else x  # it may hold a mask's bits, whose strides kernels do not look at
        if is_short(x):
            raise DerivativeError(
                f"{name} keeps a tensor of shape {tuple(shape)} for its backward whose storage has been resized to "
                f"{x.untyped_storage().nbytes()} bytes: resize it back before the backward."
            )
    return x.to(dtype)


def is_short(x: Tensor) -> bool:
    """Whether a tensor has elements beyond the end of its storage."""
    try:
        size = x.untyped_storage().nbytes()
    except RuntimeError:  # of a transform: it has none
        return False
    last = x.storage_offset() + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return bool(x.numel()) and (last + 1) * x.element_size() > size
