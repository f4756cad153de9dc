"""What a formula reads besides its arguments, so that a graph made of it is never stale.

A graph fixes every Python value that the formula used. It may be run again only while all of them are what
they were. Constants, functions and modules can be watched; an object with attributes cannot, nor a list.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from pullback import _torch
from pullback.graph.names import imports_in, names_in, writes_in

_CONSTANTS = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.layout)
_TRUSTED = frozenset(
    {"torch", "numpy", "math", "cmath", "operator", "functools", "itertools", "builtins", "typing", "collections"}
    | {"pullback"}
)
"""Packages whose functions and constants do not change under a program."""
_DRAWING = frozenset({"numpy.random"})
"""Of these, modules whose functions return something else at each call."""
_DYNAMIC = frozenset(
    {"globals", "locals", "vars", "eval", "exec", "open", "input", "print", "__import__", "getattr", "setattr"}
)
"""Built-in functions that read anything, or do what a graph does not."""
_BUILT_IN = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)
_OF_TENSORS = frozenset(
    {"is_tensor", "is_floating_point", "is_complex", "is_signed", "is_same_size", "is_conj", "get_default_dtype"}
)
"""PyTorch's functions that sound like settings and are not, or are watched."""
_MISSING = object()


@dataclass(slots=True)
class Reads:
    """What a formula reads.

    Attributes:
        watched: (dictionary, name, value) of each value that can be compared again; in place of a dictionary a
            closure's cell, with "" as the name.
        codes: functions with their code, defaults and keyword defaults: a notebook's autoreload replaces them in place.
        dtype: the default dtype: ops on integers depend on it.
        obstacle: the first thing that cannot be watched, in words; empty where there is none.
    """

    watched: list[tuple[Any, str, Any]] = field(default_factory=list)
    codes: list[tuple[types.FunctionType, types.CodeType, Any, Any]] = field(default_factory=list)
    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    obstacle: str = ""

    def unchanged(self) -> bool:
        """Whether everything that is watched is what it was."""
        for holder, name, value in self.watched:  # plain loops: this runs at every call
            if (holder.get(name, _MISSING) if name else _now(holder, "")) is not value:
                return False
        for function, code, defaults, keywords in self.codes:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return False
            if function.__kwdefaults__ != keywords:
                return False
        return torch.get_default_dtype() is self.dtype


def reads_of(*functions: Callable[..., Any] | None) -> Reads:
    """Return what these functions, and the Python functions that they name, read from around them."""
    reads = Reads()
    for function in functions:
        if function is not None:
            _follow(function, reads, set())
    reads.watched = list({(id(holder), name): (holder, name, value) for holder, name, value in reads.watched}.values())
    return reads


def _follow(function: Any, reads: Reads, seen: set[int]) -> None:
    """Note what a function of the user reads."""
    if _is_op(function):
        _follow_op(function, reads, seen)
        return
    if not isinstance(function, types.FunctionType):
        if not _is_fixed(function):
            _object(function, "", reads)
        return
    if id(function) in seen or reads.obstacle:
        return
    seen.add(id(function))
    code = function.__code__
    keywords = None if function.__kwdefaults__ is None else dict(function.__kwdefaults__)
    reads.codes.append((function, code, function.__defaults__, keywords))
    _look_inside(function, reads)
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    for first, *attributes in names_in(code):
        if first in cells:
            _see(cells[first], "", first, attributes, reads, seen)
        elif first in function.__globals__:
            _see(function.__globals__, first, first, attributes, reads, seen)
        elif first in _DYNAMIC or not hasattr(builtins, first):
            why = "does what a graph cannot" if first in _DYNAMIC else "is not defined when the graph is made"
            reads.obstacle = reads.obstacle or f"`{first}` {why}"
        else:
            reads.watched.append((function.__globals__, first, _MISSING))


def _follow_op(op: Any, reads: Reads, seen: set[int]) -> None:
    reads.watched.append((vars(op), "_rule", op._rule))
    if op.kind == "ruled":
        reads.obstacle = reads.obstacle or f"it calls {op.__name__}, whose derivative is a rule"
    for part in (op._formula, op._soft):
        if part is not None:
            _follow(part, reads, seen)


def _look_inside(function: types.FunctionType, reads: Reads) -> None:
    """Object to what a function does by itself: imports, assignments around it, defaults that may change."""
    for module in imports_in(function.__code__):
        if not _trusted(module) or module.startswith("numpy"):
            reads.obstacle = reads.obstacle or f"it imports `{module}` when called"
    for name in writes_in(function.__code__):
        reads.obstacle = reads.obstacle or f"it assigns to `{name}`, which lives outside of it"
    defaults: Iterable[Any] = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    for value in defaults:
        if not _is_fixed(value):
            _object(value, "as a default", reads)


def _see(holder: Any, key: str, shown: str, attributes: list[str], reads: Reads, seen: set[int]) -> None:
    """Watch one value, or follow it, or call it an obstacle."""
    value = _now(holder, key)
    reads.watched.append((holder, key, value))
    if isinstance(value, types.ModuleType):
        _see_module(value, shown, attributes, reads, seen)
    elif _is_op(value) or (isinstance(value, types.FunctionType) and not _is_trusted_function(value)):
        if attributes:
            reads.obstacle = reads.obstacle or f"it reads `{shown}.{attributes[0]}`, which may change between calls"
        _follow(value, reads, seen)
    elif not _is_fixed(value):
        _object(value, f"`{shown}`", reads)


def _see_module(module: types.ModuleType, shown: str, attributes: list[str], reads: Reads, seen: set[int]) -> None:
    if module.__name__ in _DRAWING:
        reads.obstacle = reads.obstacle or f"it draws random numbers from `{shown}`"
    elif module.__name__.startswith("torch") and _is_setting(module.__name__, attributes):
        reads.obstacle = reads.obstacle or f"it reads a setting of PyTorch, `{'.'.join([shown, *attributes])}`"
    elif not attributes:
        if not _trusted(module.__name__):
            reads.obstacle = reads.obstacle or f"it uses the module `{shown}` as a value"
    elif not _trusted(module.__name__):
        _see(vars(module), attributes[0], f"{shown}.{attributes[0]}", attributes[1:], reads, seen)
    else:  # what it is called does not change, so it is looked at once and not watched
        value = getattr(module, attributes[0], None)
        if isinstance(value, types.ModuleType):
            _see_module(value, f"{shown}.{attributes[0]}", attributes[1:], reads, seen)
        elif (value is torch.Tensor or value is torch.nn.Parameter) and len(attributes) == 1:
            reads.obstacle = reads.obstacle or f"it asks whether a tensor is a `{shown}.{attributes[0]}`"
        elif _is_op(value):
            _follow(value, reads, seen)
        elif not _is_fixed(value):
            _object(value, f"`{shown}.{attributes[0]}`", reads)


def _is_setting(module: str, attributes: list[str]) -> bool:
    """Whether a name in PyTorch stands for a setting or a state, by its form."""
    first = attributes[0] if attributes else ""
    if module.startswith("torch.backends") or first in {"backends", "initial_seed", "default_generator"}:
        return True
    return first.startswith(("get_", "is_", "are_")) and first not in _OF_TENSORS


def _object(value: Any, shown: str, reads: Reads) -> None:
    if isinstance(value, torch.Tensor):
        what = f"it closes over the tensor {shown}" if shown.startswith("`") else f"it has a tensor {shown}"
    elif isinstance(value, type):
        what = f"it uses the class {shown}, which may change between calls"
    else:
        comma = "," if shown else ""
        what = f"it uses an object of type {type(value).__name__}{comma} {shown}{comma} which may change between calls"
    reads.obstacle = reads.obstacle or " ".join(what.split())


def _now(holder: Any, name: str) -> Any:
    if isinstance(holder, types.CellType):
        try:
            return holder.cell_contents
        except ValueError:
            return _MISSING
    return holder.get(name, _MISSING)


def _is_fixed(value: Any) -> bool:
    """Whether a value cannot change what it is or does: a constant, or a function or class of a package we trust."""
    if isinstance(value, _BUILT_IN):
        owner = getattr(value, "__self__", None) or getattr(value, "__objclass__", None)
        named = isinstance(owner, type | types.ModuleType)
        return owner is None or (named and _trusted(getattr(owner, "__module__", None) or owner.__name__))
    if _torch.is_dispatched_op(value):
        return _torch.op_name(value).startswith(("aten::", "prims::"))
    if isinstance(value, types.FunctionType):
        return _is_trusted_function(value)
    return _trusted(value.__module__ or "") if isinstance(value, type) else _is_constant(value)


def _is_trusted_function(function: types.FunctionType) -> bool:
    """Whether a function is one that a package we trust defines: neither a user's that calls itself so
    (`functools.wraps`), nor one made by a package around a user's (`torch.vmap`).
    """
    found: Any = sys.modules.get(function.__module__ or "")
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return _trusted(function.__module__ or "") and found is function


def _is_constant(value: Any) -> bool:
    return type(value) in _CONSTANTS or (type(value) is tuple and all(map(_is_constant, value)))


def _trusted(module: str) -> bool:
    return module.partition(".")[0] in _TRUSTED


def _is_op(value: Any) -> bool:
    return bool(getattr(type(value), "_is_pullback_op", False))
