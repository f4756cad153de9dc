"""Example calls of a Function, taken from what applies it in its package: examples in docstrings, functions, modules.

A Function that no guess fits is often called in one place, by a function of tensors or a module with a few sizes, which
are easier to guess, and which build the indices, equations and callables that the Function takes.
"""

from __future__ import annotations

import doctest
import inspect
import io
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import chdir, redirect_stdout, suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from pullback import _torch
from pullback.check.case import Case, make_case
from pullback.check.cases.signature import positional_names
from pullback.check.clock import Stopwatch
from pullback.check.find.discover import subject_of
from pullback.check.find.live import applied_class
from pullback.check.inside import functions_inside
from pullback.check.subject import Subject
from pullback.check.trial import forgive
from pullback.check.watch.samples import Samples

_SECONDS = 8.0
_SIZES = (4, 2, 8)
_FENCED = re.compile(r"^[ \t]*```[ \t]*(?:\{?\.?(?:python|py)\b[^\n]*)?\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
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
    if (case := _in_docstrings(subject, applying)) is not None:
        return case
    for caller in _callers(applying):
        if clock.seconds() > _SECONDS:
            return None
        case = guess(caller)
        forgive("PB005")
        for inner, call in functions_inside(caller, case) if case is not None else ():
            if inner.target is subject.target:
                return call
    return None


def _applying(function: type) -> Iterator[tuple[ModuleType, Any]]:
    """Yield the functions and classes of a package whose code names a Function, those of its own module first."""
    package = function.__module__.partition(".")[0]
    homes = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == package and type(m) is ModuleType]
    homes.sort(key=lambda home: home.__name__ != function.__module__)
    yield sys.modules.get(function.__module__, ModuleType(function.__module__)), function
    for home in homes:
        names = {function.__name__} | {n for n, v in list(vars(home).items()) if applied_class(v) is function}
        for value in list(vars(home).values()):
            if getattr(value, "__module__", None) == home.__name__ and value is not function:
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


def _in_docstrings(subject: Subject, documented: Iterable[tuple[ModuleType, Any]]) -> Case | None:
    """Return a call of a Function that an example in a docstring makes: of several the smallest, or `None`.

    An example that raises counts up to there. Files that it writes go to a folder that is deleted.

    Args:
        subject: a Function.
        documented: what may have such an example, with its module.
    """
    function = subject.target
    samples, clock = Samples(), Stopwatch()
    end = _torch.observe_functions(samples.note)
    try:
        with tempfile.TemporaryDirectory(prefix="pullback-example-") as folder, chdir(folder):
            for home, value in documented:
                for statements in _examples(value):
                    _run(statements, {"torch": torch, **vars(home), "__name__": "__docstring__"}, clock)
                    if function in samples.functions:
                        return _called(subject, samples)
    finally:
        end()
    return None


def _called(subject: Subject, samples: Samples) -> Case | None:
    """Return the smallest of some calls that has something to differentiate."""
    for args, kwargs in samples.of(subject.target) or ():
        case = make_case(args, kwargs, positional_names(subject), "example", nested=False)
        if case.wrt:
            return case
    return None


def _run(statements: Iterable[str], names: dict[str, Any], clock: Stopwatch) -> None:
    with suppress(Exception), redirect_stdout(io.StringIO()):
        for statement in statements:
            if clock.seconds() > _SECONDS:
                return
            exec(compile(statement, "<example>", "exec"), names)


def _examples(value: Any) -> Iterator[list[str]]:
    """Yield the statements of each example in the docstring of a value, and of a class in those of its methods."""
    members = vars(value).values() if isinstance(value, type) else ()
    for owner in (value, *members):
        text = getattr(owner, "__doc__", None)
        if not isinstance(text, str):
            continue
        with suppress(ValueError):  # an inconsistent indentation
            if session := [example.source for example in doctest.DocTestParser().get_examples(text)]:
                yield session
        for block in _FENCED.findall(text):
            if ">>>" not in block:
                yield [textwrap.dedent(block)]
