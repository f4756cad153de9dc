"""Values whose content and behaviour are fixed: constants, and definitions of PyTorch, NumPy and Python."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from pullback import _torch

_CONSTANTS = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.layout)
_TRUSTED = frozenset(
    {"torch", "numpy", "math", "cmath", "operator", "functools", "itertools", "builtins", "typing", "collections"}
    | {"pullback"}
)
"""Packages whose functions behave the same in every program."""
_DECORATING = frozenset({"contextlib", "typing_extensions", "warnings"})
"""Modules that decorated functions of such a package belong to."""
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
    """Return the module in which a built-in function, or the class that it is a method of, is defined.

    Empty for a method of an object, which may change, as `d.get` does with the dictionary.
    """
    owner = getattr(function, "__objclass__", getattr(function, "__self__", None))
    if isinstance(owner, types.ModuleType):
        return owner.__name__
    home = owner if isinstance(owner, type) else function if owner is None else None
    return getattr(home, "__module__", None) or ""


def is_trusted_function(function: types.FunctionType) -> bool:
    """Whether a function is one that a package we trust defines: neither a user's that calls itself so
    (`functools.wraps`), nor one made by a package around a user's (`torch.vmap`).
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
    """Whether a value is a number, a string or another immutable one, or a tuple of such."""
    return type(value) in _CONSTANTS or (type(value) is tuple and all(map(is_constant, value)))


def trusted(module: str) -> bool:
    """Whether a module belongs to a package we trust."""
    return module.partition(".")[0] in _TRUSTED
