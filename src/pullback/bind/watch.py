"""Modes that notice what autograd cannot: values that leave PyTorch, random numbers that are drawn."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pullback import _torch

_LEAVES_PYTORCH = frozenset(
    ["numpy", "__array__", "data_ptr", "tolist", "item", "__dlpack__", "__float__", "__int__", "__complex__"]
)
_COPIES_VALUES = frozenset({"tensor", "as_tensor", "asarray"})


class Leaving(TorchFunctionMode):
    """Notes whether values left PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.left = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        self.left = self.left or name in _LEAVES_PYTORCH or (name in _COPIES_VALUES and _has_tensor(args))
        return func(*args, **(kwargs or {}))


def _has_tensor(args: Any) -> bool:
    return any(isinstance(a, torch.Tensor) or (isinstance(a, list | tuple) and _has_tensor(a)) for a in args)


class Draws(_torch.DispatchMode):
    """Notes whether random numbers are drawn."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))
