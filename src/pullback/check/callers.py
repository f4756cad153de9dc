"""Example calls of a Function, taken from what applies it in its package: functions, modules, examples and tests.

A Function that no guess fits is often called in one place, by a function of tensors or a module with a few sizes, which
are easier to guess, and which build the indices, equations and callables that the Function takes.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from pullback.check.case import Case
from pullback.check.clock import Stopwatch
from pullback.check.examples import in_docstrings, in_tests
from pullback.check.find.discover import subject_of
from pullback.check.find.live import answers, applied_class
from pullback.check.inside import functions_inside
from pullback.check.subject import Subject
from pullback.check.trial import forgive_memory

_SECONDS = 8.0
_SIZES = (4, 2, 8)
_PROGRAM = re.compile(r"^_?(main|run|train|test|demo|example|bench)")
"""Names of functions that do more than compute."""


def call_by_a_caller(subject: Subject, guess: Callable[[Subject], Case | None]) -> Case | None:
    """Return a call of a Function as something in its package makes it.

    Args:
        subject: a Function.
        guess: returns a call of a callable that works, if it finds one.
    """
    clock = Stopwatch()
    applying = list(_applying(subject.target))
    if (case := in_docstrings(subject, applying)) is not None:
        return case
    for caller in _callers(applying):
        if clock.seconds() > _SECONDS:
            break
        case = guess(caller)
        forgive_memory()
        for inner, call in functions_inside(caller, case) if case is not None else ():
            if inner.target is subject.target:
                return call
    return in_tests(subject, {value.__name__ for _, value in applying})


def _applying(function: type) -> Iterator[tuple[ModuleType, Any]]:
    """Yield the functions and classes of a package whose code names a Function, those of its own module first."""
    package = function.__module__.partition(".")[0]
    homes = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == package and type(m) is ModuleType]
    homes.sort(key=lambda home: home.__name__ != function.__module__)
    yield sys.modules.get(function.__module__, ModuleType(function.__module__)), function
    for home in homes:
        names = {function.__name__} | {n for n, v in list(vars(home).items()) if applied_class(v) is function}
        for value in list(vars(home).values()):
            if answers(value) and getattr(value, "__module__", None) == home.__name__ and value is not function:
                codes = [m.__code__ for m in _functions_of(value)]
                if any(_reads(code, names) for code in codes):
                    yield home, value


def _functions_of(value: Any) -> list[FunctionType]:
    members = vars(value).values() if isinstance(value, type) else [value]
    return [member for member in members if isinstance(member, FunctionType)]


def _callers(applying: Iterable[tuple[ModuleType, Any]]) -> Iterator[Subject]:
    """Yield what may be called to apply a Function: functions, then modules."""
    classes = []
    for _, value in applying:
        if inspect.isfunction(value) and _computes(value):
            yield subject_of(value)
        elif isinstance(value, type) and issubclass(value, torch.nn.Module):
            classes.append(value)
    for cls in classes:
        if (made := _made(cls)) is not None:
            yield subject_of(made)


def _computes(function: Callable[..., Any]) -> bool:
    """Whether a function may be one of tensors, and no program."""
    return bool(inspect.signature(function).parameters) and _PROGRAM.match(function.__name__) is None


def _reads(code: CodeType, names: Collection[str]) -> bool:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return any(name in names for name in code.co_names) or any(_reads(c, names) for c in inner)


def _made(cls: type[torch.nn.Module]) -> torch.nn.Module | None:
    """Return a module with small sizes for what its constructor asks for, in eval mode, so that it draws nothing."""
    parameters = inspect.signature(cls).parameters.values()
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    for size in _SIZES:
        given = {p.name: 0.5 if p.annotation in (float, "float") else size for p in required}
        with suppress(Exception):
            return cls(**given).eval()
    return None
