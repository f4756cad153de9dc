"""One call of an op, taken apart: its tensors, what a graph of it is specialised on, how to call again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback import _torch

_TENSORS = (Tensor, torch.nn.Parameter)
_ATOMS = (int, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class Call:
    """The arguments of one call.

    Attributes:
        leaves: arguments, with containers opened.
        tensors: those that are tensors.
        key: what a graph would be specialised on, or `None` where that cannot be said.
        obstacle: why `key` is `None`.
    """

    __slots__ = ("_args", "_positions", "_spec", "key", "leaves", "obstacle", "tensors")

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], grad: bool) -> None:
        self._spec = None
        self.leaves: Sequence[Any] = args
        self.obstacle = ""
        if kwargs or any(isinstance(a, list | tuple | dict) for a in args):
            self.leaves, self._spec = _torch.tree_leaves((args, dict(kwargs)))
        tensors: list[Tensor] = []
        positions: list[int] = []
        key: list[tuple[Any, ...]] = []
        for i, leaf in enumerate(self.leaves):
            if isinstance(leaf, Tensor):
                tensors.append(leaf)
                positions.append(i)
                if type(leaf) not in _TENSORS or leaf.layout is not torch.strided:
                    self.obstacle = "an argument is a tensor subclass or not strided"
                    continue
                needs = grad and leaf.requires_grad
                key.append((leaf.shape, leaf.stride(), leaf.dtype, leaf.device, needs, _lazy(leaf)))
            elif type(leaf) is float:
                key.append((float, leaf.hex()))  # -0.0 is not 0.0, and NaN is itself
            elif type(leaf) in _ATOMS:
                key.append((type(leaf), leaf))
            else:
                self.obstacle = f"an argument is an object of type {type(leaf).__name__}"
        self.tensors = tensors
        self._positions = positions
        self.key: Hashable | None = None if self.obstacle else (self._spec, *key)

    def flat(self, function: Callable[..., Any], structure: list[Any] | None = None) -> Callable[..., list[Any]]:
        """Return `function` as a function of the tensors alone, which returns leaves.

        `structure`, where given, receives how the leaves are put back together.
        """
        rebuild = self._rebuilder()

        def flat(*tensors: Tensor) -> list[Any]:
            args, kwargs = rebuild(tensors)
            leaves, spec = _torch.tree_leaves(function(*args, **kwargs))
            if structure is not None:
                structure[:] = [spec]
            return leaves

        return flat

    def _rebuilder(self) -> Callable[[Sequence[Tensor]], tuple[tuple[Any, ...], dict[str, Any]]]:
        # keeps no tensor of this call alive: plans outlive calls
        template = [None if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        positions, spec = self._positions, self._spec

        def rebuild(tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            leaves = list(template)
            for position, tensor in zip(positions, tensors, strict=True):
                leaves[position] = tensor
            return (tuple(leaves), {}) if spec is None else _torch.tree_unflatten(leaves, spec)

        return rebuild


def _lazy(tensor: Tensor) -> bool:
    """Whether conjugation or negation waits to be carried out."""
    return tensor.is_neg() or (tensor.is_complex() and tensor.is_conj())
