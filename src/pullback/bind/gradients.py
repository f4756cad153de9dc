"""Checks of a vjp rule's result: one gradient per input, of the input's shape and dtype. Dynamo traces these too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.dtypes import is_continuous
from pullback.errors import DerivativeError


def wrong_number(op: str, parameters: tuple[str, ...], result: Sequence[Any], args: Sequence[Any]) -> DerivativeError:
    """Return the error for more or fewer gradients than arguments."""
    return DerivativeError(
        f"the vjp of {op} returned {len(result)} gradient{'s' * (len(result) != 1)} for {len(args)} "
        f"input{'s' * (len(args) != 1)} ({', '.join(parameters)}): one for each, None where there is none."
    )


def checked(op: str, argument: str, kind: tuple[Sequence[int], torch.dtype], g: Any, cast: bool) -> Tensor | None:
    """Return a gradient of an argument if it has its shape and dtype; with `cast` the engine sees to the dtype.

    Raises:
        DerivativeError: if it has not.
    """
    if g is None:
        return None
    shape, dtype = kind
    if not isinstance(g, Tensor):
        raise DerivativeError(f"the vjp of {op} returned a {type(g).__name__} for `{argument}`, not a tensor or None.")
    if not is_continuous(dtype):
        raise DerivativeError(
            f"the vjp of {op} returned a gradient for `{argument}`, which holds {dtype}: return None."
        )
    if g.shape != shape or (g.dtype != dtype and not cast):
        raise DerivativeError(
            f"the vjp of {op} returned shape {tuple(g.shape)}, {g.dtype} for `{argument}` of shape "
            f"{tuple(shape)}, {dtype}: sum over what was broadcast, and cast back."
        )
    return g
