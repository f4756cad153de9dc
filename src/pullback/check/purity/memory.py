"""State that a function keeps between calls, in variables that its code refers to: a snapshot, and its restoration.

It comprises the class attributes, globals and closure variables that its methods refer to, and the functions of the
same module that these call, and the caches of `functools`. Containers are compared by content, tensors by version,
other objects by identity.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

from pullback.check.subject import Subject

_MISSING = object()
_CODE = (FunctionType, ModuleType, type, staticmethod, classmethod, property)


@dataclass(frozen=True)
class _Place:
    """Where a value is kept.

    Attributes:
        read: returns it, or `_MISSING`.
        write: sets or deletes the value.
    """

    read: Callable[[], Any]
    write: Callable[[Any], None]


class Memory:
    """The state of a subject at the time that this is made."""

    def __init__(self, subject: Subject) -> None:
        functions, classes, self._caches = _reached(subject.target)
        self._variables = [*_of_classes(functions, classes), *_of_functions(functions)]
        self._state = self._read()

    def has_changed(self) -> bool:
        """Whether a call has left something behind since."""
        changed = (not _is_unchanged(old, new) for old, new in zip(self._state, self._read(), strict=True))
        return any(cache.cache_info().currsize for cache in self._caches) or any(changed)

    @contextmanager
    def forgotten(self) -> Iterator[None]:
        """Run a block in the recorded state, with empty caches; undo its changes afterwards."""
        now = self._read()
        self._put_back(self._state)
        try:
            yield
        finally:
            self._put_back(now)

    def _read(self) -> list[tuple[Any, Any]]:
        """Return the value of each variable, with a copy of its content."""
        values = [place.read() for place in self._variables]
        return [(value, _contents(value)) for value in values]

    def _put_back(self, state: list[tuple[Any, Any]]) -> None:
        for cache in self._caches:
            cache.cache_clear()
        for place, (value, contents), now in zip(self._variables, state, self._read(), strict=True):
            if not _is_unchanged((value, contents), now):
                _refill(value, contents)
                place.write(value)


def _is(value: Any, kinds: Any) -> bool:
    """`isinstance` by the real type: a proxy may raise anything when asked for its class."""
    return issubclass(type(value), kinds)


def _reached(target: Any) -> tuple[list[FunctionType], list[type], list[Any]]:
    """Return the functions, the classes and the cached functions of its module that a target's code leads to."""
    functions: list[FunctionType] = []
    classes: list[type] = []
    caches: list[Any] = []
    waiting = [target]
    while waiting:
        thing = waiting.pop()
        thing = thing.__func__ if _is(thing, staticmethod | classmethod) else thing
        if inspect.getattr_static(thing, "cache_clear", None) is not None:  # another's __getattr__ may raise anything
            caches.append(thing)
            thing = inspect.unwrap(thing)
        if (
            not _is(thing, type | FunctionType)
            or thing.__module__ != target.__module__
            or thing in (*functions, *classes)
        ):
            continue
        if _is(thing, type):
            classes.append(thing)
            waiting += [*thing.__mro__[1:], *vars(thing).values()]
        elif _is(thing, FunctionType):
            functions.append(thing)
            waiting += [thing.__globals__[name] for name in _names(thing.__code__) if name in thing.__globals__]
            waiting += [content for _, cell in _cells(thing) if (content := _content(cell)) is not _MISSING]
    return functions, classes, caches


def _names(code: CodeType) -> set[str]:
    """Return the globals and attributes that a piece of code names, in functions inside it too."""
    inner = (_names(constant) for constant in code.co_consts if _is(constant, CodeType))
    return set(code.co_names).union(*inner)


def _cells(function: FunctionType) -> Iterator[tuple[str, CellType]]:
    return zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable is not assigned yet
        return _MISSING


def _of_classes(functions: list[FunctionType], classes: list[type]) -> Iterator[_Place]:
    """Yield each attribute that a class has, or that some code may give it."""
    named = set[str]().union(*(_names(function.__code__) for function in functions))
    for owner in classes:
        for name in {*vars(owner), *named}:
            if not name.startswith("__") and not _is(vars(owner).get(name), _CODE):
                yield _attribute(owner, name)


def _of_functions(functions: list[FunctionType]) -> Iterator[_Place]:
    """Yield each global and closure variable that the code names, except functions, classes and modules."""
    for function in functions:
        for name in _names(function.__code__):
            if not _is(function.__globals__.get(name), _CODE):
                yield _global(function.__globals__, name)
        for _, cell in _cells(function):
            if not _is(_content(cell), _CODE):
                yield _Place(lambda cell=cell: _content(cell), lambda value, cell=cell: _assign(cell, value))  # type: ignore[misc]


def _attribute(owner: type, name: str) -> _Place:
    def write(value: Any) -> None:
        delattr(owner, name) if value is _MISSING else setattr(owner, name, value)

    return _Place(lambda: vars(owner).get(name, _MISSING), write)


def _global(names: dict[str, Any], name: str) -> _Place:
    def write(value: Any) -> None:
        if value is _MISSING:
            del names[name]
        else:
            names[name] = value

    return _Place(lambda: names.get(name, _MISSING), write)


def _assign(cell: CellType, value: Any) -> None:
    if value is _MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = value


def _contents(value: Any) -> Any:
    """Return a copy of a container's content, or a tensor with its version; `None` for anything else."""
    if _is(value, Tensor):
        return value.detach().clone(), value._version
    return value.copy() if _is(value, dict | list | set) else None


def _is_unchanged(a: tuple[Any, Any], b: tuple[Any, Any]) -> bool:
    (value, old), (other, new) = a, b
    if value is not other or _is(value, Tensor):
        return value is other and old[1] == new[1]
    if _is(old, dict):
        return old.keys() == new.keys() and all(new[key] is item for key, item in old.items())
    if _is(old, list):
        return len(old) == len(new) and all(x is y for x, y in zip(old, new, strict=True))
    return bool(old == new)


def _refill(value: Any, contents: Any) -> None:
    """Restore the content of a container, or of a tensor."""
    if _is(value, Tensor):
        with torch.no_grad():
            value.copy_(contents[0])
    elif _is(value, list):
        value[:] = contents
    elif _is(value, dict | set):
        value.clear()
        value.update(contents)
