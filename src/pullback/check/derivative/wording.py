"""Words about a function: its name, its docstring, the comments in its source, and those of its callers."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator

from pullback.check.find.source import FunctionSource
from pullback.check.subject import Subject

_SPLIT_NAME = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_")


def texts(subject: Subject) -> Iterator[str]:
    """Yield all of it."""
    yield words_of_name(subject)
    yield docstring(subject)
    if subject.source is not None:
        yield remarks(subject.source)
    for _, text in callers(subject.source):
        yield text


def words_of_name(subject: Subject) -> str:
    """Return the words in the name of a subject."""
    return words_of(subject.name)


def words_of(name: str) -> str:
    """Return the words in a name, "symmetric eig" for `linalg.SymmetricEig`."""
    return " ".join(_SPLIT_NAME.split(name.rsplit(".", 1)[-1])).lower()


def docstring(subject: Subject) -> str:
    """Return the docstring; empty if there is none."""
    text = (subject.source.docstring if subject.source else "") or getattr(subject.target, "__doc__", None)
    return text if isinstance(text, str) else ""


def callers(source: FunctionSource | None) -> Iterator[tuple[str, str]]:
    """Yield name and docstring of each function and class of the module that calls `apply`."""
    around = [node for site in source.call_sites for node in (*site.functions[:1], site.inside_class)] if source else []
    for node in around:
        if node is not None and node is not (source.node if source else None):
            yield node.name, ast.get_docstring(node) or ""


def remarks(source: FunctionSource) -> str:
    """Return the comments and the free-standing strings inside a class."""
    lines = linecache.getlines(source.file)[source.line - 1 : source.end_line]
    comments = [line.partition("#")[2] for line in lines if "#" in line]
    strings = [
        node.value.value
        for node in ast.walk(source.node)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return "\n".join([*comments, *strings])
