"""Finds the one object that a user named or passed, and determines its kind."""

from __future__ import annotations

import functools
import inspect
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch

from pullback import _torch
from pullback.check.find.importing import imported
from pullback.check.find.live import (
    Found,
    answers,
    applied_class,
    attribute,
    find_callable,
    find_carried,
    find_function,
    find_op,
    has_forward,
    is_function,
    location_of,
)
from pullback.check.find.packages import in_package
from pullback.check.find.places import Home, home_of_module
from pullback.check.find.source import plain_function, source_of
from pullback.check.subject import is_carried
from pullback.errors import TargetError


def find_attribute(home: Home, name: str) -> Found | None:
    """Describe the object of a module with a name, which may be dotted; `None` if there is none.

    Raises:
        TargetError: if it is of a kind that cannot be audited.
    """
    obj: Any = home.module
    parts = name.split(".")
    inside, expression = home, name
    for position, part in enumerate(parts):
        obj = _get(obj, part)
        if isinstance(obj, ModuleType) and in_package(obj.__name__, home.name):
            inside = replace(home_of_module(obj), setup=home.setup)
            expression = ".".join(parts[position + 1 :])
    if obj is None:
        return None
    found = describe(obj, inside, f"{home.shown}:{name}")
    if is_function(obj) or is_carried(obj):
        expression += ".apply"
    return replace(found, name=name, load=inside.load(expression, name, found.location))


def find_given(obj: Any) -> Found:
    """Describe a live object that was passed to the library.

    Raises:
        TargetError: it is nothing that can be audited.
    """
    return describe(obj, _home_of(obj), "what was given")


def describe(obj: Any, home: Home, what: str) -> Found:
    """Describe an object of a module: a Function class or its `apply`, an op, or another callable.

    Raises:
        TargetError: if it is none of these; the message calls it `what`.
    """
    if (carried := _carried(obj)) is not None:
        return find_carried(carried, home)
    cls = obj if is_function(obj) else applied_class(obj)
    if cls is not None:
        if not has_forward(cls):
            raise TargetError(f"{cls.__name__} has no forward: there is nothing to audit")
        return find_function(cls, home)
    if _torch.is_custom_op(obj):
        return find_op(obj, home)
    if isinstance(obj, type):
        raise TargetError(_to_construct(obj))
    if not callable(obj):
        raise TargetError(
            f"{what} is of type {type(obj).__name__}: give an autograd.Function class, a torch.library op or a callable"
        )
    return _find_op_overload(obj, home) if _torch.is_dispatched_op(obj) else find_callable(obj, home)


def public_callables(module: ModuleType, functions: bool = False) -> list[str]:
    """Return the names of the callables that a module defines; of its classes the Functions, or none."""
    return [
        name
        for name, value in vars(module).items()
        if callable(value)
        and answers(value)
        and (not isinstance(value, type) or (functions and (is_function(value) or is_carried(value))))
        and not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
    ]


def _get(obj: Any, part: str) -> Any:
    """Return an attribute, or a submodule that is not imported yet; `None` if there is neither."""
    value = attribute(obj, part)
    if value is None and isinstance(obj, ModuleType) and hasattr(obj, "__path__"):
        value = imported(Home(f"{obj.__name__}.{part}", None, obj.__name__)).module
    return value


def _carried(obj: Any) -> type | None:
    """Return `Op` if `obj` is a class `Op` derived from `pullback.AutogradFunction`, or its `apply`."""
    applied = inspect.ismethod(obj) and obj.__name__ == "apply"
    cls = obj.__self__ if applied else obj
    return cls if is_carried(cls) else None


def _home_of(obj: Any) -> Home:
    owner = applied_class(obj) or _carried(obj) or obj
    if _torch.is_custom_op(owner):
        owner = _torch.custom_op_function(owner)
    elif not isinstance(owner, type):
        owner = plain_function(owner) if isinstance(owner, functools.partial) else owner
    name = getattr(owner, "__module__", None) or "torch"  # its builtins have none
    module = sys.modules.get(name)
    return Home(name, None, name) if module is None else home_of_module(module)


def _to_construct(cls: type) -> str:
    kind = "an nn.Module" if issubclass(cls, torch.nn.Module) else "a class"
    return (
        f"{cls.__name__} is {kind} to be constructed first: audit an instance, "
        f"as in `layer = {cls.__name__}(…)` and then pullback.check(layer) or FILE:layer"
    )


def _find_op_overload(op: Any, home: Home) -> Found:
    name = _torch.op_name(op)
    packet = name.partition(".")[0]
    defined = next((known for known in _torch.custom_ops() if _torch.op_name(known) == packet), None)
    if defined is not None:
        home = _home_of(defined)
    source = None if defined is None else source_of(defined)
    return Found(
        target=op,
        kind="op",
        name=name,
        module=home.name,
        qualname=name,
        location=location_of(defined, source, home),
        source=source,
        load=_load_op(name, home, defined),
    )


def _load_op(name: str, home: Home, defined: Any) -> str:
    """Return the lines for `torch.ops.ns.name`, after the import of its definition."""
    importable = defined is not None and home.module is not None and home.name != "__main__"
    define = f"import {home.name}\n" if importable else ""
    return f"import torch\n{define}fn = torch.ops.{name.replace('::', '.')}"
