"""Modes that observe how a function computes: values that leave PyTorch, values cut from autograd, random draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pullback import _torch
from pullback.dtypes import has_derivative

_TO_FOREIGN_CODE = frozenset(
    ["numpy", "__array__", "data_ptr", "tolist", "item", "__dlpack__", "__float__", "__int__", "__complex__"]
)
_COPIES = frozenset({"tensor", "as_tensor", "asarray"})


class EscapeMode(TorchFunctionMode):
    """Observes whether values leave PyTorch: for NumPy, a foreign kernel or a Python number.

    Attributes:
        escaped: whether any did.
    """

    def __init__(self) -> None:
        super().__init__()
        self.escaped = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        self.escaped = self.escaped or name in _TO_FOREIGN_CODE or (name in _COPIES and _has_tensor(args))
        return func(*args, **(kwargs or {}))


def _has_tensor(args: Any) -> bool:
    return any(isinstance(a, torch.Tensor) or (isinstance(a, list | tuple) and _has_tensor(a)) for a in args)


class DetachMode(TorchFunctionMode):
    """Observes which values depend on some tensors through an op that autograd does not differentiate.

    Args:
        live: the tensors.
    """

    def __init__(self, live: Sequence[Tensor]) -> None:
        super().__init__()
        # By identity; the dictionaries keep the tensors alive, so that no identity is used a second time.
        self._live: dict[int, Tensor] = {id(t): t for t in live}
        self._detached: dict[int, Tensor] = {}

    def is_detached(self, t: Tensor) -> bool:
        """Whether a tensor depends on a value that was detached."""
        return id(t) in self._detached

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        operands = list(tensors_in((args, kwargs)))
        name = getattr(func, "__name__", "")
        written = [args[0]] if name == "__setitem__" else []
        results = list(tensors_in((result, written, (kwargs or {}).get("out"))))
        if any(id(t) in self._detached for t in operands):
            self._detached.update((id(t), t) for t in results)
        elif any(id(t) in self._live or t.requires_grad for t in operands):
            detaches = name in _DETACHES or func in _DETACHING_GETTERS or not torch.is_grad_enabled()
            for t in results:
                if (detaches and has_derivative(t)) or (
                    name == "view" and not has_derivative(t)
                ):  # `view(dtype)`: bits
                    self._detached[id(t)] = t
                elif has_derivative(t):
                    self._live[id(t)] = t
        return result


_DETACHES = frozenset({"detach", "detach_", "new_tensor", *_COPIES})
_DETACHING_GETTERS = frozenset({Tensor.data.__get__})  # type: ignore[attr-defined]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a structure."""
    return (t for t in _torch.tree_leaves(value)[0] if isinstance(t, Tensor))


class RandomMode(_torch.DispatchMode):
    """Observes whether random numbers are drawn.

    Attributes:
        drew: whether any were.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drew = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.drew = self.drew or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))
