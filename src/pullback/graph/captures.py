"""Captures of a formula: every value that its code reads besides its arguments. They are the guards of a cached graph.

A trace specialises on the Python values that the formula uses: globals, closed-over variables, defaults, functions that
it calls, attributes of tensors. The graph is valid while these are unchanged. Constants, functions and modules can be
compared at each call; mutable objects cannot, and are obstacles: such a formula runs op by op.

The analysis is static, by bytecode, and follows the Python functions that a formula calls, except those of PyTorch,
NumPy and the standard library, whose behaviour is fixed as long as their names are bound to the same objects.
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
from pullback.graph.bytecode import (
    attributes_in,
    catches,
    imports_in,
    matches,
    names_in,
    operators_in,
    sets_in,
    writes_in,
)
from pullback.graph.identity import identity, is_fixed, is_trusted_function, trusted

_DRAWING = frozenset({"numpy.random"})
"""Trusted modules whose functions return something else at each call."""
_READING = "globals locals vars dir getattr hasattr type id hash"
_DOING = "eval exec open input print __import__ setattr delattr"
_DYNAMIC = frozenset(f"{_READING} {_DOING}".split())
"""Built-in functions that read arbitrary state, or have side effects that no graph reproduces."""
_ATTRIBUTE_READERS = (operator.attrgetter, operator.methodcaller)
"""Callables that read an attribute by its name."""
_SAVED_TENSOR_HOOKS = "torch.autograd.graph"
"""Module of the hooks for saved tensors: PyTorch's own backward calls them, a graph does not."""
_FILE_READERS = frozenset(
    {"load", "loadtxt", "genfromtxt", "fromfile", "from_file", "fromregex", "memmap", "open_memmap", "DataSource"}
)
"""Functions and classes of NumPy and PyTorch that read files, which may hold something else at each call."""
_HIGHER_ORDER_OPS = "torch._higher_order_ops"
"""Module of `torch.cond` and the like, which compile their branches: an enclosing mode forbids that."""
_METHODS = vars(torch.Tensor)
"""Attributes that `torch.Tensor` defines itself, rather than its base class in C++."""
_TENSOR_PREDICATES = frozenset(
    {"is_tensor", "is_floating_point", "is_complex", "is_signed", "is_same_size", "is_conj", "get_default_dtype"}
)
"""PyTorch's functions that are named like settings but read a tensor, or a setting that is watched."""
_SETTINGS = frozenset({"backends", "initial_seed", "seed", "default_generator", "device_count"})
"""Settings and states of PyTorch whose names have no prefix of a setting."""
_NUMPY_SETTINGS = frozenset({"errstate", "printoptions", "datetime64"})
"""Settings and states of NumPy whose names have no prefix of a setting; `datetime64` reads the clock."""
_MISSING = object()
WITH_CONTEXT = "_pullback_forward"
"""Attribute of a formula that wraps a forward with a context: the forward."""


@dataclass(slots=True)
class Captures:
    """Values that a formula reads besides its arguments.

    Attributes:
        watched: (dictionary, name, value) of each value that can be compared at a later call; for a closed-over
            variable its cell in place of the dictionary, and "" as the name.
        codes: functions with their code, defaults and keyword defaults, which autoreload in a notebook replaces.
        dtype: the default dtype, on which ops on integers depend.
        n_methods: number of names that `torch.Tensor` defines: a new one may override one of its base in C++.
        obstacle: the first capture that cannot be watched, in words; empty if there is none.
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
    """Return the sentinel in `Captures.watched` for an unbound name."""
    return _MISSING


def captures_of(*functions: Callable[..., Any] | None) -> Captures:
    """Return the captures of some functions and of the Python functions that they call."""
    captures = Captures()
    for function in functions:
        if function is not None:
            _follow(function, captures, set())
    captures.watched = list(
        {(id(holder), name): (holder, name, value) for holder, name, value in captures.watched}.values()
    )
    return captures


def _follow(function: Any, captures: Captures, seen: set[int]) -> None:
    """Record the captures of a user's function."""
    if _is_op(function):
        _follow_op(function, captures, seen)
        return
    if not isinstance(function, types.FunctionType):
        if not is_fixed(function):
            _object(function, "", captures)
        return
    if id(function) in seen or captures.obstacle:
        return
    seen.add(id(function))
    forward = getattr(function, WITH_CONTEXT, None)
    if forward is not None:  # its context is made for the call, and dropped
        function = forward
    code = function.__code__
    context = code.co_varnames[0] if forward is not None else ""
    keywords = None if function.__kwdefaults__ is None else dict(function.__kwdefaults__)
    captures.codes.append((function, code, function.__defaults__, keywords))
    _look_inside(function, captures, context)
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    for first, *attributes in names_in(code):
        if first in cells:
            _see(cells[first], "", first, attributes, captures, seen)
        elif first in function.__globals__:
            _see(function.__globals__, first, first, attributes, captures, seen)
        elif first in _DYNAMIC or not hasattr(builtins, first):
            why = "does what a graph cannot" if first in _DYNAMIC else "is not defined when the graph is made"
            captures.obstacle = captures.obstacle or f"`{first}` {why}"
        else:
            captures.watched.append((function.__globals__, first, _MISSING))
            captures.watched.append((vars(builtins), first, vars(builtins)[first]))
            _see_method(f"__{first}__", captures, seen)  # of `abs(x)`
            _see_attributes(attributes, captures, seen)
    _see_attributes(attributes_in(code, context=context), captures, seen)
    for name in operators_in(code):
        _see_method(name, captures, seen)


def _follow_op(op: Any, captures: Captures, seen: set[int]) -> None:
    captures.watched.append((vars(op), "_handler", op._handler))
    if op._stable is not None:
        captures.watched.append((vars(op._stable), "version", op._stable.version))
    if op.kind == "ruled":
        captures.obstacle = captures.obstacle or f"it calls {op.__name__}, whose derivative is a rule"
    for part in (op._formula, op._relaxation):
        if part is not None:
            _follow(part, captures, seen)


def _look_inside(function: types.FunctionType, captures: Captures, context: str) -> None:
    """Record obstacles in a function itself: imports, assignments to outer names, mutable defaults."""
    for module in imports_in(function.__code__):  # a later rebinding inside it would go unnoticed
        captures.obstacle = captures.obstacle or f"it imports `{module}` when called"
    for name in writes_in(function.__code__):
        captures.obstacle = captures.obstacle or f"it assigns to `{name}`, which lives outside of it"
    for name in sets_in(function.__code__, context):
        captures.obstacle = captures.obstacle or f"it sets the attribute `.{name}`"
    if matches(function.__code__):
        captures.obstacle = captures.obstacle or "it matches a value against a class"
    if catches(function.__code__):
        captures.obstacle = captures.obstacle or "it catches exceptions, which tensors without values may raise"
    defaults: Iterable[Any] = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    for value in defaults:
        _require_fixed(value, "as a default", captures)


def _see(holder: Any, key: str, shown: str, attributes: list[str], captures: Captures, seen: set[int]) -> None:
    """Watch a value; follow it if it is a Python function of the user's; record an obstacle if it may change."""
    value = _now(holder, key)
    captures.watched.append((holder, key, value))
    if isinstance(value, types.ModuleType):
        _see_module(value, shown, attributes, captures, seen)
    elif _is_op(value) or (isinstance(value, types.FunctionType) and not is_trusted_function(value)):
        if attributes:
            captures.obstacle = (
                captures.obstacle or f"it reads `{shown}.{attributes[0]}`, which may change between calls"
            )
        _follow(value, captures, seen)
    else:
        _see_value(value, shown, attributes, captures, seen)


def _see_value(value: Any, shown: str, attributes: list[str], captures: Captures, seen: set[int]) -> None:
    """Record a value, or a read of it, as an obstacle."""
    _require_fixed(value, f"`{shown}`", captures)
    _see_attributes(attributes, captures, seen)


def _require_fixed(value: Any, shown: str, captures: Captures) -> None:
    """Record an obstacle for a mutable value, and for one that reads more of a tensor than its kind."""
    name = getattr(value, "__name__", "")
    if not is_fixed(value):
        _object(value, shown, captures)
    elif name in _FILE_READERS:
        captures.obstacle = captures.obstacle or f"it reads a file, with {shown}"
    elif getattr(value, "__globals__", {}).get("__name__", "").startswith(_HIGHER_ORDER_OPS):
        captures.obstacle = captures.obstacle or f"a part of it is compiled, by {shown}"
    elif getattr(value, "__module__", "") == _SAVED_TENSOR_HOOKS:
        captures.obstacle = captures.obstacle or f"it sets hooks for saved tensors, with {shown}"
    elif value in _ATTRIBUTE_READERS:
        captures.obstacle = captures.obstacle or f"it reads an attribute by its name, with {shown}"
    elif _is_setting(getattr(value, "__module__", None) or "", [name]):  # also under an alias in the formula
        captures.obstacle = captures.obstacle or f"it reads a setting, {shown}"
    elif _is_private(value):
        captures.obstacle = captures.obstacle or f"it uses {shown}, which is private"
    elif isinstance(value, type) and issubclass(value, torch.Tensor) and value is not torch.Tensor:
        captures.obstacle = captures.obstacle or f"it asks whether a tensor is a {shown}"
    elif isinstance(value, type) and issubclass(value, torch.nn.Module):
        captures.obstacle = captures.obstacle or f"it makes a module, {shown}, to which hooks may be added"
    elif (
        callable(value)
        and not name.startswith("_")
        and getattr(torch.Tensor, name, None) is value
        and not is_of_kind(name)
    ):
        captures.obstacle = captures.obstacle or f"it reads the attribute `.{name}`, which one tensor may have"


def _is_private(value: Any) -> bool:
    """Whether a function is private by its name; an ATen op may have such a name too."""
    name = getattr(value, "__name__", "")
    return name.startswith("_") and not name.startswith("__") and not _torch.is_dispatched_op(value)


def _see_attributes(names: Iterable[str], captures: Captures, seen: set[int]) -> None:
    """Watch attributes of tensors; those in which tensors of one kind may differ are obstacles."""
    for name in names:
        if not _see_method(name, captures, seen) and not is_of_kind(name):
            captures.obstacle = captures.obstacle or f"it reads the attribute `.{name}`, which one tensor may have"


def _see_method(name: str, captures: Captures, seen: set[int]) -> bool:
    """Watch an attribute of `torch.Tensor`; follow it, and return true, if it is the user's."""
    if name not in _METHODS:
        return False
    method = _METHODS[name]
    captures.watched.append((_METHODS, name, method))
    if isinstance(method, types.FunctionType) and not is_trusted_function(method):
        _follow(method, captures, seen)
        return True
    if not (is_fixed(method) or isinstance(method, types.GetSetDescriptorType)):  # as a property is not
        _object(method, f"`.{name}`", captures)
    return False


def _see_module(
    module: types.ModuleType, shown: str, attributes: list[str], captures: Captures, seen: set[int]
) -> None:
    if module.__name__ in _DRAWING:
        captures.obstacle = captures.obstacle or f"it draws random numbers from `{shown}`"
    elif _is_setting(module.__name__, attributes):
        captures.obstacle = captures.obstacle or f"it reads a setting, `{'.'.join([shown, *attributes])}`"
    elif not attributes:  # a later rebinding of one of its attributes would go unnoticed
        captures.obstacle = captures.obstacle or f"it uses the module `{shown}` as a value"
    elif not trusted(module.__name__):
        _see(vars(module), attributes[0], f"{shown}.{attributes[0]}", attributes[1:], captures, seen)
    else:
        _see_trusted(module, shown, attributes, captures, seen)


def _see_trusted(
    module: types.ModuleType, shown: str, attributes: list[str], captures: Captures, seen: set[int]
) -> None:
    """Watch a function of a trusted package: its behaviour is fixed unless the name is rebound."""
    first, *rest = attributes
    value, shown = getattr(module, first, None), f"{shown}.{first}"
    if isinstance(value, types.ModuleType):
        _see_module(value, shown, rest, captures, seen)
    else:
        _see(vars(module), first, shown, rest, captures, seen)


def _is_setting(module: str, attributes: list[str]) -> bool:
    """Whether a name in a module refers to a setting or state of PyTorch or NumPy, by its form."""
    package, first = module.partition(".")[0], attributes[0] if attributes else ""
    if package == "numpy":
        return first.startswith(("get", "set")) or first in _NUMPY_SETTINGS
    if package != "torch":
        return False
    if module.startswith("torch.backends") or first in _SETTINGS:
        return True
    return first.startswith(("get_", "is_", "are_", "current_")) and first not in _TENSOR_PREDICATES


def _object(value: Any, shown: str, captures: Captures) -> None:
    if isinstance(value, torch.Tensor):
        what = f"it closes over the tensor {shown}" if shown.startswith("`") else f"it has a tensor {shown}"
    elif isinstance(value, type):
        what = f"it uses the class {shown}, which may change between calls"
    else:
        comma = "," if shown else ""
        what = f"it uses an object of type {type(value).__name__}{comma} {shown}{comma} which may change between calls"
    captures.obstacle = captures.obstacle or " ".join(what.split())


def _now(holder: Any, name: str) -> Any:
    if isinstance(holder, types.CellType):
        try:
            return holder.cell_contents
        except ValueError:
            return _MISSING
    return holder.get(name, _MISSING)


def _is_same(now: Any, then: Any) -> bool:
    """Whether a value has the same type and bits: it may be another object, such as a recomputed number."""
    known = identity(then)
    return known is not None and known == identity(now)


def _holds_same(now: Mapping[str, Any], then: Mapping[str, Any]) -> bool:
    """Whether keyword defaults are identical; equality is too coarse, since 0.0 == -0.0 and 1 == True."""
    return now.keys() == then.keys() and all(now[k] is v or _is_same(now[k], v) for k, v in then.items())


def _is_op(value: Any) -> bool:
    return bool(getattr(type(value), "_is_pullback_op", False))


_PER_TENSOR = """
    backward const_data_ptr data_ptr grad grad_dtype grad_fn is_distributed is_inference is_leaf is_pinned is_set_to
    is_shared name names output_nr pin_memory record_stream register_post_accumulate_grad_hook requires_grad_
    retain_grad retains_grad share_memory_ storage storage_offset storage_type untyped_storage volatile
"""
"""Attributes that describe, and methods that change, a single tensor rather than its kind (shape, strides, dtype)."""


def _public(*types: type) -> frozenset[str]:
    return frozenset(name for kind in types for name in dir(kind) if not name.startswith("_"))


_TENSOR_ATTRIBUTES = _public(torch.Tensor)
_RESULTS = [k for k in vars(torch.return_types).values() if isinstance(k, type) and issubclass(k, tuple)]
_KIND_ATTRIBUTES = _TENSOR_ATTRIBUTES.union(
    _public(str, bytes, int, float, complex, tuple, list, dict, set, slice, range),
    _public(torch.Size, torch.dtype, torch.device, torch.finfo, torch.iinfo, *_RESULTS),
).difference(_PER_TENSOR.split())


def is_of_kind(name: str) -> bool:
    """Whether an attribute is PyTorch's or Python's own, and equal for all tensors of one kind.

    Any other may have been set on one tensor, and a trace sees a tensor without it.
    """
    return name in _KIND_ATTRIBUTES


def overrides_attribute(tensor: torch.Tensor) -> bool:
    """Whether an attribute that was set on a tensor hides one of PyTorch's."""
    return not _TENSOR_ATTRIBUTES.isdisjoint(vars(tensor))
