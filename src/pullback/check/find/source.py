"""The source of a custom function as the audit needs it: its methods, its allow comments, its calls.

Of a file, without executing it; or of a live object, typed in a file, a notebook cell or an `exec`.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from pullback import _torch
from pullback.check.find.calls import CallSite as CallSite
from pullback.check.find.parsed import FunctionSource as FunctionSource
from pullback.check.find.parsed import SourceFile, read, source_file
from pullback.check.find.scopes import Definition
from pullback.errors import TargetError


def parse_file(path: str | Path, known: Collection[str] = ()) -> list[FunctionSource]:
    """Return the `autograd.Function` classes of a file, at any depth, in source order. Nothing is executed.

    Args:
        path: a Python file, in the encoding that it declares.
        known: names of Functions of other files of the same package, to be recognised as bases.

    Raises:
        TargetError: if the file cannot be read or is not valid Python.
    """
    return source_file(read(path), str(path)).functions(known)


def source_of(obj: Any) -> FunctionSource | None:
    """Return the source of a class or a callable, or `None` if it is not available.

    A class has its own definition; a module or another instance has that of its `forward` or `__call__`, a partial or a
    custom op that of its function; a lambda has `None`.
    """
    if isinstance(obj, type):
        return _source_of_class(obj)
    function = plain_function(obj)
    file = None if function is None else _file_of(function.__code__, function.__globals__)
    if function is None or file is None:
        return None
    code = function.__code__
    found = [d for d in file.definitions if isinstance(d.node, ast.FunctionDef) and d.node.name == code.co_name]
    return next((file.describe(d) for d in found if _starts(d, code)), None)


def plain_function(obj: Any) -> FunctionType | None:
    """Return the Python function that a call of `obj` ends up in; `None` if it is not written in Python."""
    if _torch.is_custom_op(obj):
        obj = _torch.custom_op_function(obj)
    while True:
        if isinstance(obj, functools.partial):
            obj = obj.func
        elif isinstance(obj, staticmethod | classmethod | MethodType):
            obj = obj.__func__
        elif hasattr(obj, "__wrapped__") and not isinstance(obj, type):
            obj = inspect.unwrap(obj)
        elif isinstance(obj, FunctionType):
            return obj
        elif isinstance(method := _call_method(obj), FunctionType):
            obj = method
        else:
            return None


def own_functions(cls: type) -> list[FunctionType]:
    """Return the Python functions that the body of a class defines or assigns, unwrapped."""
    values = [value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")]
    return [
        function
        for value in values
        if isinstance(value, FunctionType | staticmethod | classmethod)
        and (function := plain_function(value)) is not None
    ]


def _call_method(obj: Any) -> Any:
    if isinstance(obj, type):
        return None
    return getattr(type(obj), "forward" if isinstance(obj, torch.nn.Module) else "__call__", None)


def _source_of_class(cls: type) -> FunctionSource | None:
    for file, line in _places(cls):
        classes = [d for d in file.definitions if isinstance(d.node, ast.ClassDef)]
        around = [d for d in classes if d.first_line <= line <= d.last_line] if line else classes
        same_name = [d for d in around if d.qualname == cls.__qualname__]
        if line and not same_name:  # one that was pickled by value, or whose decorator renames it
            same_name = [d for d in around if d.node.name == cls.__name__]
        if same_name:
            return file.describe(same_name[-1])
    return None


def _places(cls: type) -> Iterator[tuple[SourceFile, int]]:
    """Yield files that may define the class, each with a line inside it; 0 if the line is not known."""
    for function in own_functions(cls):
        if (file := _file_of(function.__code__, function.__globals__)) is not None:
            yield file, function.__code__.co_firstlineno
    module = sys.modules.get(cls.__module__)
    name = getattr(module, "__file__", None)
    if module is not None and name is not None and (file := _file(name, vars(module))) is not None:
        yield file, 0


def _starts(definition: Definition, code: CodeType) -> bool:
    return code.co_firstlineno in (definition.first_line, definition.node.lineno)


def _file_of(code: CodeType, namespace: dict[str, Any]) -> SourceFile | None:
    return _file(code.co_filename, namespace)


def _file(name: str, namespace: dict[str, Any]) -> SourceFile | None:
    linecache.checkcache(name)
    text = "".join(linecache.getlines(name, namespace))
    try:
        return source_file(text, name) if text else None
    except TargetError:
        return None
