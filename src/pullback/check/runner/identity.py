"""A fingerprint of the code that an object runs: equal if the same module, imported anew, would run the same."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_NOT_THEIRS = ("torch.", "pullback.", "builtins.")


def fingerprint(obj: Any) -> str:
    """Return a digest of functions and of the plain values that they name, as far as they are of the user's modules.

    A program may have replaced a method, or set a number that a module holds, after it imported the module.
    """
    return hashlib.sha256("\n".join(_parts(obj, set())).encode()).hexdigest()


def _parts(obj: Any, seen: set[int]) -> Iterator[str]:
    if isinstance(obj, functools.partial):
        yield from _parts(obj.func, seen)
        return
    obj = getattr(obj, "__func__", obj)
    if not isinstance(obj, FunctionType | type):
        obj = type(obj)
    if id(obj) in seen or f"{obj.__module__}.".startswith(_NOT_THEIRS):
        return
    seen.add(id(obj))
    if isinstance(obj, type):
        for cls in obj.__mro__ if not f"{obj.__module__}.".startswith(_NOT_THEIRS) else ():
            if not f"{cls.__module__}.".startswith(_NOT_THEIRS):
                yield from _of_names(vars(cls), [n for n in vars(cls) if not n.startswith("__")], seen)
        return
    function = inspect.unwrap(obj)
    if isinstance(function, FunctionType):
        yield from _of_code(function.__code__, function.__globals__, seen)


def _of_code(code: CodeType, namespace: dict[str, Any], seen: set[int]) -> Iterator[str]:
    yield code.co_code.hex()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _of_code(constant, namespace, seen)
        else:
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
    yield from _of_names(namespace, code.co_names, seen)


def _of_names(namespace: Any, names: Any, seen: set[int]) -> Iterator[str]:
    for name in sorted(names):
        value = namespace.get(name)
        value = getattr(value, "__func__", value)
        if isinstance(value, _PLAIN):
            yield f"{name} = {value!r}"
        elif isinstance(value, FunctionType | type):
            yield from _parts(value, seen)
