"""Example calls of a Function, taken from the examples in docstrings of what applies it."""

from __future__ import annotations

import doctest
import io
import re
import tempfile
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import chdir, redirect_stdout, suppress
from types import ModuleType
from typing import Any

import torch

from pullback import _torch
from pullback.check.case import Case, make_case
from pullback.check.cases.signature import positional_names
from pullback.check.clock import Stopwatch
from pullback.check.subject import Subject
from pullback.check.watch.samples import Samples

_SECONDS = 8.0
_FENCED = re.compile(r"^[ \t]*```[ \t]*(?:\{?\.?(?:python|py)\b[^\n]*)?\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)


def call_in_docstrings(subject: Subject, documented: Iterable[tuple[ModuleType, Any]]) -> Case | None:
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
