"""Private PyTorch of tensors: their kinds, memory and versions, and fake tensors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pullback._torch.dynamo import import_dynamo
from pullback._torch.private import Missing, private

_DataDependent = private("torch._subclasses.fake_tensor.DataDependentOutputException")
_FakeTensor = private("torch._subclasses.fake_tensor.FakeTensor")
_FakeTensorMode = private("torch._subclasses.fake_tensor.FakeTensorMode")


def is_plain_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of PyTorch's own strided ones, or a fake of one: no subclass, nested or sparse tensor.

    Relies on `torch._subclasses.fake_tensor.FakeTensor`.
    """
    return type(tensor) in _PLAIN_KINDS and tensor.layout is torch.strided and not tensor.is_nested


_PLAIN_KINDS = (torch.Tensor, torch.nn.Parameter, _FakeTensor)


def fake_mode() -> Any:
    """Mode in which tensors have shapes, strides and dtypes, but no values.

    Relies on `torch._subclasses.fake_tensor.FakeTensorMode` and its `from_tensor`.
    """
    import_dynamo()
    return _FakeTensorMode(allow_non_fake_inputs=True)


def is_fake(tensor: Any) -> bool:
    """Whether a tensor has no values.

    Relies on `torch._subclasses.fake_tensor.FakeTensor`.
    """
    return isinstance(tensor, _FakeTensor)


DATA_DEPENDENT: tuple[type[Exception], ...] = () if isinstance(_DataDependent, Missing) else (_DataDependent,)

"""Exception raised when the value of a fake tensor is read.

Relies on `torch._subclasses.fake_tensor.DataDependentOutputException`."""


META = torch.device("meta")


is_zero_tensor: Callable[[torch.Tensor], bool] = private("torch.Tensor._is_zerotensor")

"""Whether a tensor is an efficient zero tensor, without memory, as autograd makes for known zero derivatives."""


def version_of(tensor: torch.Tensor) -> int:
    """Version counter of a tensor, which in-place writes increment.

    Relies on `Tensor._version`.
    """
    return tensor._version


def storage_of(tensor: torch.Tensor) -> int:
    """Identity of a tensor's storage, equal for tensors that share memory, including fake ones.

    Relies on `UntypedStorage._cdata`.
    """
    return int(tensor.untyped_storage()._cdata)


share_storage: Callable[[torch.Tensor, torch.Tensor], bool] = private("torch._C._is_alias_of")

"""Whether two tensors share a storage."""


@contextmanager
def without_fake_tensor_log() -> Iterator[None]:
    """Suppress the log of fake tensors: they log, with a traceback, errors that Pullback reports or handles.

    Relies on the logger "torch._subclasses.fake_tensor".
    """
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def map_jagged_values(function: Callable[..., torch.Tensor], *nested: torch.Tensor) -> torch.Tensor:
    """Apply a pointwise function to the values of jagged tensors, which all have the structure of the first.

    Relies on `torch.nested._internal.nested_tensor.NestedTensor._ragged_idx`.
    """
    values = function(*(t.values() for t in nested))
    first: Any = nested[0]
    made: torch.Tensor = torch.nested.nested_tensor_from_jagged(
        values, first.offsets(), first.lengths(), jagged_dim=first._ragged_idx
    )
    return made


def is_storage_error(error: RuntimeError) -> bool:
    """Whether an error says that a tensor has no storage: one of a transform, which NumPy or a kernel cannot read.

    Relies on the words "doesn't have storage".
    """
    return "doesn't have storage" in str(error)
