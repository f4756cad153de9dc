"""Tensors as text that crosses a pipe: dtype, shape and raw bytes. Nothing that a candidate sends is unpickled."""

from __future__ import annotations

import base64
import ctypes
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.check.trial import as_real

Sent = dict[str, Any] | None
"""A tensor in JSON; `None` for a gradient that is missing."""

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
        *(torch.float8_e4m3fn, torch.float8_e5m2),
    )
}
# Bound here, before a candidate could replace them.
_string_at, _b64encode, _sha256, _Tensor = ctypes.string_at, base64.b64encode, hashlib.sha256, Tensor


@dataclass(frozen=True, slots=True)
class Raw:
    """A tensor as it arrived.

    Attributes:
        dtype, shape: as the sender says.
        data: its bytes, contiguous.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    data: bytes

    def tensor(self) -> Tensor:
        """The tensor."""
        if not self.data:
            return torch.zeros(self.shape, dtype=self.dtype)
        return torch.frombuffer(bytearray(self.data), dtype=self.dtype).reshape(self.shape)

    @property
    def digest(self) -> str:
        """Its fingerprint, as `digest` gives."""
        return _sha256(self.data).hexdigest()

    def flat(self) -> Tensor:
        """The values as float64, complex numbers as pairs."""
        return as_real(self.tensor())


def sent(t: Tensor) -> dict[str, Any]:
    """A tensor in JSON."""
    plain, data = _bytes_of(t)
    dtype = str(plain.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(plain.shape), "data": _b64encode(data).decode()}


def digest(t: Tensor) -> str:
    """A fingerprint of the values of a tensor."""
    return _sha256(_bytes_of(t)[1]).hexdigest()


def _bytes_of(t: Tensor) -> tuple[Tensor, bytes]:
    """A plain tensor with the values of another, contiguous, and its bytes."""
    plain = t.detach()
    if type(plain) is not _Tensor:
        plain = plain.as_subclass(_Tensor)
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    plain = plain.cpu().resolve_conj().resolve_neg().contiguous()
    return plain, _string_at(plain.data_ptr(), plain.nbytes) if plain.numel() else b""


def received(message: Any) -> Raw:
    """A tensor from JSON that may be forged.

    Raises:
        ValueError: if it is none.
    """
    try:
        dtype, shape = _DTYPES[message["dtype"]], tuple(int(size) for size in message["shape"])
        data = base64.b64decode(message["data"], validate=True)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a tensor: {type(error).__name__}: {error}") from None
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"{len(data)} bytes are no tensor of shape {list(shape)} and dtype {message['dtype']}")
    return Raw(dtype, shape, data)


def received_list(messages: Sequence[Sent] | Any) -> list[Raw | None]:
    """Several tensors, or missing ones.

    Raises:
        ValueError: if one is none.
    """
    if not isinstance(messages, list):
        raise ValueError("not a list of tensors")
    return [None if message is None else received(message) for message in messages]
