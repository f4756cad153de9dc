"""Reads of a formula besides its arguments, the guards of a cached graph.

A graph specialises on every Python value that the formula used, and stays valid only while they are unchanged.
Constants, functions and modules can be watched; mutable objects and lists cannot.
"""

from __future__ import annotations

import builtins
import operator
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from pullback import _torch
from pullback.graph.attributes import is_of_kind
from pullback.graph.identity import identity
from pullback.graph.names import attributes_in, catches, imports_in, matches, names_in, operators_in, sets_in, writes_in
from pullback.graph.trust import is_fixed, is_trusted_function, trusted

_DRAWING = frozenset({"numpy.random"})
"""Of these, modules whose functions return something else at each call."""
_READING = "globals locals vars dir getattr hasattr type id hash"
_DOING = "eval exec open input print __import__ setattr delattr"
_DYNAMIC = frozenset(f"{_READING} {_DOING}".split())
"""Built-in functions that read arbitrary state, or have side effects that no graph reproduces."""
_BY_NAME = (operator.attrgetter, operator.methodcaller)
"""Callables that read an attribute by its name."""
_OF_SAVED = "torch.autograd.graph"
"""Where hooks for saved tensors live: PyTorch's own backward calls them, and no graph does."""
_OF_FILES = frozenset(
    {"load", "loadtxt", "genfromtxt", "fromfile", "from_file", "fromregex", "memmap", "open_memmap", "DataSource"}
)
"""Functions and classes of NumPy and PyTorch that read files, which may hold something else at each call."""
_OF_GRAPHS = "torch._higher_order_ops"
"""Where `torch.cond` and the like live: they compile their branches, which an enclosing mode forbids."""
_METHODS = vars(torch.Tensor)
"""Attributes that `torch.Tensor` defines itself, rather than its base class in C++."""
_OF_TENSORS = frozenset(
    {"is_tensor", "is_floating_point", "is_complex", "is_signed", "is_same_size", "is_conj", "get_default_dtype"}
)
"""PyTorch's functions that are named like settings but are none, or are watched."""
_SETTINGS = frozenset({"backends", "initial_seed", "seed", "default_generator", "device_count"})
"""Its settings and states that do not sound so."""
_OF_NUMPY = frozenset({"errstate", "printoptions", "datetime64"})
"""Settings and states of NumPy that do not sound so: one reads the clock."""
_MISSING = object()
WITH_CONTEXT = "_pullback_forward"
"""The attribute of a formula that calls a forward with a context: that forward."""


@dataclass(slots=True)
class Reads:
    """Reads of a formula besides its arguments.

    Attributes:
        watched: (dictionary, name, value) of each value that can be compared again; in place of a dictionary a
            closure's cell, with "" as the name.
        codes: functions with their code, defaults and keyword defaults: a notebook's autoreload replaces them in place.
        dtype: the default dtype: ops on integers depend on it.
        n_methods: number of names that `torch.Tensor` defines: a new one may override one in C++.
        obstacle: the first read that cannot be watched, in words; empty if there is none.
    """

    watched: list[tuple[Any, str, Any]] = field(default_factory=list)
    codes: list[tuple[types.FunctionType, types.CodeType, Any, Any]] = field(default_factory=list)
    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    n_methods: int = field(default_factory=lambda: len(_METHODS))
    obstacle: str = ""

    def unchanged(self) -> bool:
        """Whether every watched value is unchanged."""
        for holder, name, value in self.watched:  # plain loops: this runs at every call
            now = holder.get(name, _MISSING) if name else _now(holder, "")
            if now is not value and not _is_same(now, value):
                return False
        for function, code, defaults, keywords in self.codes:
            if function.__code__ is not code:
                return False
            if function.__defaults__ is not defaults and not _is_same(function.__defaults__, defaults):
                return False
            if (keywords or function.__kwdefaults__) and not _holds_same(function.__kwdefaults__ or {}, keywords or {}):
                return False
        return torch.get_default_dtype() is self.dtype and len(_METHODS) == self.n_methods

    @staticmethod
    def methods() -> Any:
        """Return the namespace whose size is `n_methods`."""
        return _METHODS


def missing() -> object:
    """Return the sentinel in `Reads.watched` for a name without a value."""
    return _MISSING


def reads_of(*functions: Callable[..., Any] | None) -> Reads:
    """Return the reads of some functions and of the Python functions that they refer to."""
    reads = Reads()
    for function in functions:
        if function is not None:
            _follow(function, reads, set())
    reads.watched = list({(id(holder), name): (holder, name, value) for holder, name, value in reads.watched}.values())
    return reads


def _follow(function: Any, reads: Reads, seen: set[int]) -> None:
    """Record the reads of a user's function."""
    if _is_op(function):
        _follow_op(function, reads, seen)
        return
    if not isinstance(function, types.FunctionType):
        if not is_fixed(function):
            _object(function, "", reads)
        return
    if id(function) in seen or reads.obstacle:
        return
    seen.add(id(function))
    forward = getattr(function, WITH_CONTEXT, None)
    if forward is not None:  # it is called with a context that is made for it, and dropped
        function = forward
    code = function.__code__
    context = code.co_varnames[0] if forward is not None else ""
    keywords = None if function.__kwdefaults__ is None else dict(function.__kwdefaults__)
    reads.codes.append((function, code, function.__defaults__, keywords))
    _look_inside(function, reads, context)
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
            reads.watched.append((vars(builtins), first, vars(builtins)[first]))
            _see_method(f"__{first}__", reads, seen)  # of `abs(x)`
            _see_attributes(attributes, reads, seen)
    _see_attributes(attributes_in(code, context=context), reads, seen)
    for name in operators_in(code):
        _see_method(name, reads, seen)


def _follow_op(op: Any, reads: Reads, seen: set[int]) -> None:
    reads.watched.append((vars(op), "_handler", op._handler))
    if op._stable is not None:
        reads.watched.append((vars(op._stable), "given", op._stable.given))
    if op.kind == "ruled":
        reads.obstacle = reads.obstacle or f"it calls {op.__name__}, whose derivative is a rule"
    for part in (op._formula, op._soft):
        if part is not None:
            _follow(part, reads, seen)


def _look_inside(function: types.FunctionType, reads: Reads, context: str) -> None:
    """Record obstacles in a function itself: imports, assignments to outer names, mutable defaults."""
    for module in imports_in(function.__code__):  # a later rebinding inside it would go unnoticed
        reads.obstacle = reads.obstacle or f"it imports `{module}` when called"
    for name in writes_in(function.__code__):
        reads.obstacle = reads.obstacle or f"it assigns to `{name}`, which lives outside of it"
    for name in sets_in(function.__code__, context):
        reads.obstacle = reads.obstacle or f"it sets the attribute `.{name}`"
    if matches(function.__code__):
        reads.obstacle = reads.obstacle or "it matches a value against a class"
    if catches(function.__code__):
        reads.obstacle = reads.obstacle or "it catches exceptions, which tensors without values may raise"
    defaults: Iterable[Any] = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    for value in defaults:
        _require_fixed(value, "as a default", reads)


def _see(holder: Any, key: str, shown: str, attributes: list[str], reads: Reads, seen: set[int]) -> None:
    """Watch one value, or follow it, or call it an obstacle."""
    value = _now(holder, key)
    reads.watched.append((holder, key, value))
    if isinstance(value, types.ModuleType):
        _see_module(value, shown, attributes, reads, seen)
    elif _is_op(value) or (isinstance(value, types.FunctionType) and not is_trusted_function(value)):
        if attributes:
            reads.obstacle = reads.obstacle or f"it reads `{shown}.{attributes[0]}`, which may change between calls"
        _follow(value, reads, seen)
    else:
        _see_value(value, shown, attributes, reads, seen)


def _see_value(value: Any, shown: str, attributes: list[str], reads: Reads, seen: set[int]) -> None:
    """Record a value, or a read of it, as an obstacle."""
    _require_fixed(value, f"`{shown}`", reads)
    _see_attributes(attributes, reads, seen)


def _require_fixed(value: Any, shown: str, reads: Reads) -> None:
    """Object to a mutable value, and to one that reads more of a tensor than its kind."""
    name = getattr(value, "__name__", "")
    if not is_fixed(value):
        _object(value, shown, reads)
    elif name in _OF_FILES:
        reads.obstacle = reads.obstacle or f"it reads a file, with {shown}"
    elif getattr(value, "__globals__", {}).get("__name__", "").startswith(_OF_GRAPHS):
        reads.obstacle = reads.obstacle or f"a part of it is compiled, by {shown}"
    elif getattr(value, "__module__", "") == _OF_SAVED:
        reads.obstacle = reads.obstacle or f"it sets hooks for saved tensors, with {shown}"
    elif value in _BY_NAME:
        reads.obstacle = reads.obstacle or f"it reads an attribute by its name, with {shown}"
    elif _is_setting(getattr(value, "__module__", None) or "", [name]):  # also under an alias in the formula
        reads.obstacle = reads.obstacle or f"it reads a setting, {shown}"
    elif _is_private(value):
        reads.obstacle = reads.obstacle or f"it uses {shown}, which is private"
    elif isinstance(value, type) and issubclass(value, torch.Tensor) and value is not torch.Tensor:
        reads.obstacle = reads.obstacle or f"it asks whether a tensor is a {shown}"
    elif isinstance(value, type) and issubclass(value, torch.nn.Module):
        reads.obstacle = reads.obstacle or f"it makes a module, {shown}, to which hooks may be added"
    elif (
        callable(value)
        and not name.startswith("_")
        and getattr(torch.Tensor, name, None) is value
        and not is_of_kind(name)
    ):
        reads.obstacle = reads.obstacle or f"it reads the attribute `.{name}`, which one tensor may have"


def _is_private(value: Any) -> bool:
    """Whether a function is private by its name; an ATen op may have such a name too."""
    name = getattr(value, "__name__", "")
    return name.startswith("_") and not name.startswith("__") and not _torch.is_dispatched_op(value)


def _see_attributes(names: Iterable[str], reads: Reads, seen: set[int]) -> None:
    """Object to attributes in which tensors of one kind may differ, and watch the others."""
    for name in names:
        if not _see_method(name, reads, seen) and not is_of_kind(name):
            reads.obstacle = reads.obstacle or f"it reads the attribute `.{name}`, which one tensor may have"


def _see_method(name: str, reads: Reads, seen: set[int]) -> bool:
    """Watch an attribute of `torch.Tensor`; follow it, and return true, if it is the user's."""
    if name not in _METHODS:
        return False
    method = _METHODS[name]
    reads.watched.append((_METHODS, name, method))
    if isinstance(method, types.FunctionType) and not is_trusted_function(method):
        _follow(method, reads, seen)
        return True
    if not (is_fixed(method) or isinstance(method, types.GetSetDescriptorType)):  # as a property is not
        _object(method, f"`.{name}`", reads)
    return False


def _see_module(module: types.ModuleType, shown: str, attributes: list[str], reads: Reads, seen: set[int]) -> None:
    if module.__name__ in _DRAWING:
        reads.obstacle = reads.obstacle or f"it draws random numbers from `{shown}`"
    elif _is_setting(module.__name__, attributes):
        reads.obstacle = reads.obstacle or f"it reads a setting, `{'.'.join([shown, *attributes])}`"
    elif not attributes:  # a later rebinding of one of its attributes would go unnoticed
        reads.obstacle = reads.obstacle or f"it uses the module `{shown}` as a value"
    elif not trusted(module.__name__):
        _see(vars(module), attributes[0], f"{shown}.{attributes[0]}", attributes[1:], reads, seen)
    else:
        _see_trusted(module, shown, attributes, reads, seen)


def _see_trusted(module: types.ModuleType, shown: str, attributes: list[str], reads: Reads, seen: set[int]) -> None:
    """Watch a function of a trusted package: its behaviour is fixed unless the name is rebound."""
    first, *rest = attributes
    value, shown = getattr(module, first, None), f"{shown}.{first}"
    if isinstance(value, types.ModuleType):
        _see_module(value, shown, rest, reads, seen)
    else:
        _see(vars(module), first, shown, rest, reads, seen)


def _is_setting(module: str, attributes: list[str]) -> bool:
    """Whether a name in a module refers to a setting or state of PyTorch or NumPy, by its form."""
    package, first = module.partition(".")[0], attributes[0] if attributes else ""
    if package == "numpy":
        return first.startswith(("get", "set")) or first in _OF_NUMPY
    if package != "torch":
        return False
    if module.startswith("torch.backends") or first in _SETTINGS:
        return True
    return first.startswith(("get_", "is_", "are_", "current_")) and first not in _OF_TENSORS


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


def _is_same(now: Any, then: Any) -> bool:
    """Whether a value is another object with the same type and bits, such as a recomputed number."""
    known = identity(then)
    return known is not None and known == identity(now)


def _holds_same(now: Mapping[str, Any], then: Mapping[str, Any]) -> bool:
    """Whether keyword defaults are identical; equality is too coarse, since 0.0 == -0.0 and 1 == True."""
    return now.keys() == then.keys() and all(now[k] is v or _is_same(now[k], v) for k, v in then.items())


def _is_op(value: Any) -> bool:
    return bool(getattr(type(value), "_is_pullback_op", False))
