"""Identity of Python values: type and bits.

`==` is too coarse and NaN breaks it: 1 == 1.0 == True, 0.0 == -0.0, NaN != NaN. A cache key has to tell them apart,
since a graph specialised on each has another dtype or other values.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable
from typing import Any

import torch

from pullback import _torch
from pullback.graph.trust import trusted

ATOMS = frozenset(
    [int, float, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format]
)
"""Types of plain values: they cannot change, and hold no tensor."""

_FLOAT = struct.Struct("=d")


def identity(value: Any) -> tuple[Any, ...] | None:
    """Return a key, equal only for values of the same type and bits; `None` for a mutable value."""
    kind = type(value)
    if kind is float:
        return kind, _FLOAT.pack(value)
    if kind in ATOMS:
        return kind, value
    if kind is complex:
        return kind, _FLOAT.pack(value.real), _FLOAT.pack(value.imag)
    return _all(kind, map(identity, value)) if kind is tuple else None


def value_of(kind: type, bits: Any) -> Any:
    """Return the value of an atom from its identity."""
    return _FLOAT.unpack(bits)[0] if kind is float else bits


def opened(tree: Any) -> tuple[list[Any], Any, Hashable | None]:
    """Return the leaves of nested containers, their structure, and the identity of that.

    There is no identity, `None`, where a container's class is not Python's or PyTorch's, or a key of a dictionary may
    change.
    """
    containers: list[Any] = []
    leaves, spec = _torch.tree_leaves(tree, containers)
    parts = [() if container is None else _of_container(*container) for container in containers]
    return leaves, spec, None if None in parts else tuple(parts)


def _of_container(kind: Any, context: Any, n_children: int) -> tuple[Any, ...] | None:
    """Return the identity of a container without its items; `context` is the pytree context."""
    known = _of_context(context) if trusted(kind.__module__) else None
    return None if known is None else (kind, n_children, *known)


def _of_context(context: Any) -> tuple[Any, ...] | None:
    """Return the identity of a dictionary's keys, of a defaultdict's factory, or of a named tuple's class."""
    if isinstance(context, type):
        return type, context
    return _all(list, map(_of_context, context)) if type(context) is list else identity(context)


def _all(kind: type, identities: Iterable[Any]) -> tuple[Any, ...] | None:
    parts = tuple(identities)
    return None if None in parts else (kind, *parts)
