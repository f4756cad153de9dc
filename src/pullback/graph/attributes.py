"""Attributes of tensors, divided into those equal for all tensors of one kind and those of a single tensor."""

from __future__ import annotations

import torch

_ONE_TENSOR = """
    backward const_data_ptr data_ptr grad grad_dtype grad_fn is_distributed is_inference is_leaf is_pinned is_set_to
    is_shared name names output_nr pin_memory record_stream register_post_accumulate_grad_hook requires_grad_
    retain_grad retains_grad share_memory_ storage storage_offset storage_type untyped_storage volatile
"""
_FACTS = frozenset(_ONE_TENSOR.split())
"""Attributes that describe, and methods that change, a single tensor rather than its kind (shape, strides, dtype)."""


def _public(*types: type) -> frozenset[str]:
    return frozenset(name for kind in types for name in dir(kind) if not name.startswith("_"))


_OF_TENSORS = _public(torch.Tensor)
_OF_PLAIN_VALUES = _public(str, bytes, int, float, complex, tuple, list, dict, set, slice, range)
_OF_PYTORCH = _public(torch.Size, torch.dtype, torch.device, torch.finfo, torch.iinfo) | _public(
    *(kind for kind in vars(torch.return_types).values() if isinstance(kind, type) and issubclass(kind, tuple))
)


def is_of_kind(name: str) -> bool:
    """Whether an attribute is one of PyTorch's or Python's own that is the same for all tensors of a kind.

    Any other may have been set on one tensor; a trace sees a tensor without it.
    """
    return name not in _FACTS and (name in _OF_TENSORS or name in _OF_PLAIN_VALUES or name in _OF_PYTORCH)


def shadows(tensor: torch.Tensor) -> bool:
    """Whether an attribute set on this tensor stands before one of PyTorch's."""
    return not _OF_TENSORS.isdisjoint(vars(tensor))
