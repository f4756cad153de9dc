"""Identity of Python values, for cache keys: type and bits. And values whose content and behaviour are fixed.

`==` is too coarse for a key, and NaN breaks it: 1 == 1.0 == True, 0.0 == -0.0, NaN != NaN. A graph specialised on each
of these has another dtype or other values.

A value is fixed if it is a constant, or defined by PyTorch, NumPy or Python: it does the same in every program.
"""

from __future__ import annotations

import struct
import sys
import types
from collections.abc import Hashable, Iterable
from typing import Any

import torch

from pullback import _torch

ATOMS = frozenset(
    [int, float, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format]
)
"""Types of plain values: they cannot change, and hold no tensor."""

_FLOAT = struct.Struct("=d")


def identity(value: Any) -> tuple[Any, ...] | None:
    """Key of a value, equal only for values of the same type and bits; `None` for a mutable value."""
    kind = type(value)
    if kind is float:
        return kind, _FLOAT.pack(value)
    if kind in ATOMS:
        return kind, value
    if kind is complex:
        return kind, _FLOAT.pack(value.real), _FLOAT.pack(value.imag)
    return _all(kind, map(identity, value)) if kind is tuple else None


def value_of(kind: type, bits: Any) -> Any:
    """Value of an atom, from its identity."""
    return _FLOAT.unpack(bits)[0] if kind is float else bits


def leaves_and_structure(tree: Any) -> tuple[list[Any], Any, Hashable | None]:
    """Leaves of nested containers, their structure, and the identity of the structure.

    The identity is `None` if a container's class is neither Python's nor PyTorch's, or a dictionary's key may change.
    """
    containers: list[Any] = []
    leaves, spec = _torch.tree_leaves(tree, containers)
    parts = [() if container is None else _of_container(*container) for container in containers]
    return leaves, spec, None if None in parts else tuple(parts)


def _of_container(kind: Any, context: Any, n_children: int) -> tuple[Any, ...] | None:
    """Identity of a container without its items, from its class and its pytree context."""
    known = _of_context(context) if trusted(kind.__module__) else None
    return None if known is None else (kind, n_children, *known)


def _of_context(context: Any) -> tuple[Any, ...] | None:
    """Identity of a dictionary's keys, of a defaultdict's factory, or of a named tuple's class."""
    if isinstance(context, type):
        return type, context
    return _all(list, map(_of_context, context)) if type(context) is list else identity(context)


def _all(kind: type, identities: Iterable[Any]) -> tuple[Any, ...] | None:
    parts = tuple(identities)
    return None if None in parts else (kind, *parts)


_CONSTANTS = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.layout)
_TRUSTED = frozenset(
    {"torch", "numpy", "math", "cmath", "operator", "functools", "itertools", "builtins", "typing", "collections"}
    | {"pullback"}
)
"""Packages whose functions do the same in every program."""
_DECORATING = frozenset({"contextlib", "typing_extensions", "warnings"})
"""Modules to which decorated functions of trusted packages belong."""
_BUILT_IN = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)


def is_fixed(value: Any) -> bool:
    """Whether a value is immutable in content and behaviour: a constant, or a definition of a trusted package."""
    if isinstance(value, _BUILT_IN):
        return trusted(_home_of(value))
    if _torch.is_dispatched_op(value):
        return _torch.op_name(value).startswith(("aten::", "prims::"))
    if isinstance(value, types.FunctionType):
        return is_trusted_function(value)
    return trusted(value.__module__ or "") if isinstance(value, type) else is_constant(value)


def _home_of(function: Any) -> str:
    """Module of a built-in function, or of the class that it is a method of.

    Empty for a bound method, whose object may change: `d.get` with the dictionary.
    """
    owner = getattr(function, "__objclass__", getattr(function, "__self__", None))
    if isinstance(owner, types.ModuleType):
        return owner.__name__
    home = owner if isinstance(owner, type) else function if owner is None else None
    return getattr(home, "__module__", None) or ""


def is_trusted_function(function: types.FunctionType) -> bool:
    """Whether a trusted package defines a function.

    A user's function may have the name of such a package (`functools.wraps`), and a trusted package may wrap a user's
    function (`torch.vmap`): neither counts.
    """
    home = function.__globals__.get("__name__") or ""  # `functools.wraps` does not change it
    if not (trusted(home) or home in _DECORATING):
        return False
    found: Any = sys.modules.get(function.__module__ or "")
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    if trusted(function.__module__ or "") and found is function:
        return True
    contents = [_content(cell) for cell in function.__closure__ or ()]
    return trusted(home) and all(value is function or is_fixed(value) for value in contents)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return cell


def is_constant(value: Any) -> bool:
    """Whether a value is a number, a string or another immutable value, or a tuple of these."""
    return type(value) in _CONSTANTS or (type(value) is tuple and all(map(is_constant, value)))


def trusted(module: str) -> bool:
    """Whether a module belongs to a trusted package."""
    return module.partition(".")[0] in _TRUSTED
