"""Modes that notice operations outside autograd: values that leave PyTorch or are detached, and random draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pullback import _torch
from pullback.dtypes import has_derivative

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


class Cutting(TorchFunctionMode):
    """Tracks tensors, and values that depend on any of them through an op that autograd does not see."""

    def __init__(self, live: Sequence[Tensor]) -> None:
        super().__init__()
        self._live: dict[int, Tensor] = {id(t): t for t in live}
        self._cut: dict[int, Tensor] = {}

    def is_cut(self, t: Tensor) -> bool:
        """Whether a tensor depends on something that was cut off."""
        return id(t) in self._cut

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = list(tensors_in((args, kwargs)))
        name = getattr(func, "__name__", "")
        written = [args[0]] if name == "__setitem__" else []
        made = list(tensors_in((result, written, (kwargs or {}).get("out"))))
        if any(id(t) in self._cut for t in given):
            self._cut.update((id(t), t) for t in made)
        elif any(id(t) in self._live or t.requires_grad for t in given):
            cuts = name in _CUTS or func in _GETTERS or not torch.is_grad_enabled()
            for t in made:
                if (cuts and has_derivative(t)) or (name == "view" and not has_derivative(t)):  # its bits
                    self._cut[id(t)] = t
                elif has_derivative(t):
                    self._live[id(t)] = t
        return result


_CUTS = frozenset({"detach", "detach_", "new_tensor", *_COPIES_VALUES})
_GETTERS = frozenset({Tensor.data.__get__})  # type: ignore[attr-defined]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a structure."""
    return (t for t in _torch.tree_leaves(value)[0] if isinstance(t, Tensor))


class Draws(_torch.DispatchMode):
    """Notes whether random numbers are drawn."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))
