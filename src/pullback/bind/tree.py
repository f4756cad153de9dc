"""Pytrees of arguments and results with their tensors taken out, to be filled with others."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pullback import _torch
from pullback.graph.identity import identity, opened

TENSOR = object()
"""Placeholder for a tensor in a template."""


_ATOMS = frozenset({int, float, bool, str, type(None)})


@dataclass(slots=True)
class Tree:
    """A structure with its tensors taken out; `flat` where it is a tuple of leaves."""

    template: list[Any]
    spec: Any
    flat: bool = False

    @classmethod
    def of(cls, value: Any) -> tuple[Tree, list[Tensor]]:
        """Take the tensors out of `value`. A lone tensor and a tuple of leaves, the usual cases, go the short way."""
        if isinstance(value, Tensor):
            return _LONE, [value]
        flat = type(value) is tuple and len(value) < len(_FLAT)
        leaves, spec = (value, _FLAT[len(value)]) if flat else _torch.tree_leaves(value)
        template: list[Any] = []
        tensors: list[Tensor] = []
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                tensors.append(leaf)
                template.append(TENSOR)
            elif flat and type(leaf) not in _ATOMS:
                return cls._nested(value)
            else:
                template.append(leaf)
        return cls(template, spec, flat), tensors

    @property
    def is_lone(self) -> bool:
        """Whether it is a tensor, and no structure at all."""
        return self is _LONE

    @classmethod
    def _nested(cls, value: Any) -> tuple[Tree, list[Tensor]]:
        leaves, spec = _torch.tree_leaves(value)
        return cls.of_leaves(leaves, spec), [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    @classmethod
    def of_leaves(cls, leaves: Sequence[Any], spec: Any) -> Tree:
        """Take the tensors out of a structure that is flat already."""
        if spec == _LONE.spec:
            return _LONE
        flat = len(leaves) < len(_FLAT) and spec == _FLAT[len(leaves)]
        return cls([TENSOR if isinstance(x, Tensor) else x for x in leaves], spec, flat)

    def filled(self, tensors: Sequence[Any]) -> Any:
        """Return the structure filled with tensors or placeholders."""
        if self is _LONE:
            return tensors[0]
        waiting = iter(tensors)
        leaves = [next(waiting) if leaf is TENSOR else leaf for leaf in self.template]
        return tuple(leaves) if self.flat else _torch.tree_unflatten(leaves, self.spec)

    def of_tensors(self, derivatives: Sequence[Any]) -> Any:
        """Return the structure filled with the tensors' derivatives, and `None` elsewhere: numbers have none."""
        if self is _LONE:
            return derivatives[0]
        waiting = iter(derivatives)
        leaves = [next(waiting) if leaf is TENSOR else None for leaf in self.template]
        return tuple(leaves) if self.flat else _torch.tree_unflatten(leaves, self.spec)

    def identity(self) -> Hashable | None:
        """Return a key shared by trees that differ in tensors alone; `None` if other values in them may change."""
        leaves, _, structure = opened(self.filled([TENSOR] * self.template.count(TENSOR)))
        known = tuple([() if leaf is TENSOR else identity(leaf) for leaf in leaves])
        return None if structure is None or None in known else (structure, known)

    def owners(self) -> list[int]:
        """Return, for each tensor, which item of the structure it is in."""
        if self.flat:
            return [i for i, leaf in enumerate(self.template) if leaf is TENSOR]
        marks = self.filled([TENSOR] * self.template.count(TENSOR))
        return [i for i, mark in enumerate(marks) for leaf in _torch.tree_leaves(mark)[0] if leaf is TENSOR]


_LONE = Tree([TENSOR], _torch.tree_leaves(None)[1])
"""A tensor that stands alone."""

_FLAT = [_torch.tree_leaves((None,) * n)[1] for n in range(17)]
"""The structure of a tuple of n leaves."""


def apart(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return outputs with separate memory, copied where they share it.

    A write to one must not reach a tensor that has another derivative.
    """
    made: list[Tensor] = []
    for out in outputs:
        for t in (*inputs, *made):
            if _torch.share_memory(out, t):
                out = out.clone()
                break
        made.append(out)
    return made


class _Word(str):
    """A string whose repr is its content."""

    __slots__ = ()
    __repr__ = str.__str__


def described(value: Any) -> str:
    """Return a structure in words: `(tensor, {'a': tensor})`."""
    leaves, spec = _torch.tree_leaves(value)
    words = ["tensor" if leaf is TENSOR or isinstance(leaf, Tensor) else type(leaf).__name__ for leaf in leaves]
    return repr(_torch.tree_unflatten([_Word("None" if w == "NoneType" else w) for w in words], spec))
