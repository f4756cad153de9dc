"""What a formula reads besides its arguments, so that a graph made of it is never stale.

A graph fixes every Python value that the formula used. It may be run again only while all of them are what
they were. Constants, functions and modules can be watched; an object with attributes cannot, nor a list.
"""

from __future__ import annotations

import builtins
import dis
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

_CONSTANTS = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.layout)
_TRUSTED = (
    "torch",
    "math",
    "cmath",
    "operator",
    "functools",
    "itertools",
    "builtins",
    "typing",
    "collections",
    "numpy",
    "pullback",
)
"""Packages whose functions and constants do not change under a program."""
_MISSING = object()


@dataclass(slots=True)
class Reads:
    """What a formula reads.

    Attributes:
        watched: (dictionary or cell, name, value) of each value that can be compared again.
        obstacle: the first thing that cannot be watched, in words; empty where there is none.
    """

    watched: list[tuple[Any, str, Any]] = field(default_factory=list)
    obstacle: str = ""

    def unchanged(self) -> bool:
        """Whether everything that is watched is what it was."""
        for holder, name, value in self.watched:  # a plain loop: this runs at every call
            if (_now(holder, name) if name == "" else holder.get(name, _MISSING)) is not value:
                return False
        return True


def reads_of(*functions: Callable[..., Any] | None) -> Reads:
    """Return what these functions, and the Python functions that they name, read from around them."""
    reads = Reads()
    for function in functions:
        if function is not None and not reads.obstacle:
            _follow(function, reads, set())
    reads.watched = list({(id(holder), name): (holder, name, value) for holder, name, value in reads.watched}.values())
    return reads


def _follow(function: Any, reads: Reads, seen: set[int]) -> None:
    while hasattr(function, "__wrapped__") and not isinstance(function, types.FunctionType):
        function = function.__wrapped__
    if not isinstance(function, types.FunctionType):
        reads.obstacle = reads.obstacle or f"it calls an object of type {type(function).__name__}"
        return
    if id(function) in seen:
        return
    seen.add(id(function))
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for chain in _names(function.__code__):
        if reads.obstacle:
            return
        first, *attributes = chain
        if first in cells:
            _see(cells[first], "", first, attributes, reads, seen)
        elif first in function.__globals__:
            _see(function.__globals__, first, first, attributes, reads, seen)
        elif not hasattr(builtins, first):
            reads.obstacle = f"`{first}` is not defined when the graph is made"


def _see(holder: Any, key: str, shown: str, attributes: list[str], reads: Reads, seen: set[int]) -> None:
    """Watch one value, or follow it, or call it an obstacle."""
    value = _now(holder, key)
    if isinstance(value, types.ModuleType) and not _trusted(value.__name__):
        if not attributes:
            reads.obstacle = f"it uses the module `{shown}` as a value"
            return
        reads.watched.append((holder, key, value))
        _see(vars(value), attributes[0], f"{shown}.{attributes[0]}", attributes[1:], reads, seen)
        return
    reads.watched.append((holder, key, value))
    if isinstance(value, types.ModuleType) or _is_constant(value) or _trusted(getattr(value, "__module__", None) or ""):
        if isinstance(value, torch.Tensor):
            reads.obstacle = f"it closes over the tensor `{shown}`"
        return
    if isinstance(value, types.BuiltinFunctionType):
        return
    if isinstance(value, types.FunctionType) or _is_op(value):
        _follow(value, reads, seen)
        return
    what = "the class" if isinstance(value, type) else f"an object of type {type(value).__name__},"
    reads.obstacle = f"it uses {what} `{shown}`, which may change between calls"


def _names(code: types.CodeType) -> Iterator[list[str]]:
    """Yield each global or closed-over name that code loads, with the attributes read from it at once."""
    own = set(code.co_varnames) | set(code.co_cellvars)
    chain: list[str] = []
    for instruction in dis.get_instructions(code):
        if chain and instruction.opname in {"LOAD_ATTR", "LOAD_METHOD"}:
            chain.append(instruction.argval)
            continue
        if chain:
            yield chain
            chain = []
        loads = instruction.opname in {"LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_NAME"}
        if loads and instruction.argval not in own:
            chain = [instruction.argval]
    if chain:
        yield chain
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for chain in _names(constant):
                if chain[0] not in own:
                    yield chain


def _now(holder: Any, name: str) -> Any:
    if isinstance(holder, types.CellType):
        try:
            return holder.cell_contents
        except ValueError:
            return _MISSING
    return holder.get(name, _MISSING)


def _trusted(module: str) -> bool:
    return module.partition(".")[0] in _TRUSTED


def _is_constant(value: Any) -> bool:
    return isinstance(value, _CONSTANTS) or (type(value) is tuple and all(map(_is_constant, value)))


def _is_op(value: Any) -> bool:
    return bool(getattr(type(value), "_is_pullback_op", False))
