"""Classes of a file, found by their qualified names, each replaced by another; and the methods in them."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import libcst as cst

from pullback.fix.model import CannotFixError

Change = TypeVar("Change")


def parsed(source: bytes) -> cst.Module:
    """Parse a file, in the encoding that it declares.

    Raises:
        CannotFixError: if it cannot be parsed.
    """
    try:
        return cst.parse_module(source)
    except cst.ParserSyntaxError as error:
        raise CannotFixError(f"its file cannot be parsed: {error.message}") from None


def with_classes(
    module: cst.Module, changes: Mapping[str, Change], changed: Callable[[Change, cst.ClassDef], cst.ClassDef]
) -> cst.Module:
    """Return a module with some of its classes replaced.

    Args:
        module: the current one.
        changes: changes of classes, by their qualified names.
        changed: returns the new class.

    Raises:
        CannotFixError: if no class has a name, or more than one has.
    """
    editor = _Editor({name: partial(changed, change) for name, change in changes.items()})
    module = module.visit(editor)
    for name in changes:
        if editor.found[name] != 1:
            raise CannotFixError(f"its file defines {name} {editor.found[name]} times")
    return module


def block_of(method: cst.FunctionDef) -> cst.IndentedBlock:
    """Return the body of a method as a block, also if it is on the line of its head."""
    if isinstance(method.body, cst.IndentedBlock):
        return method.body
    line = cst.SimpleStatementLine(method.body.body)  # type: ignore[arg-type]
    return cst.IndentedBlock([line])


def definition_of(method: cst.FunctionDef) -> ast.FunctionDef:
    """Return a method as Python's own parser sees it."""
    [parsed] = ast.parse(cst.Module([method.with_changes(leading_lines=[])]).code).body
    assert isinstance(parsed, ast.FunctionDef)  # it is the text of one
    return parsed


class _Editor(cst.CSTTransformer):
    """Replaces classes, and counts those of each name."""

    def __init__(self, changes: Mapping[str, Callable[[cst.ClassDef], cst.ClassDef]]) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self._changes = changes
        self._around: list[str] = []

    def visit_ClassDef(self, node: cst.ClassDef) -> None:  # noqa: N802 - libcst's name
        """Enter a class."""
        self._around.append(node.name.value)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:  # noqa: N802 - libcst's name
        """Enter a function."""
        self._around += [node.name.value, "<locals>"]

    def leave_FunctionDef(  # noqa: N802 - libcst's name
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        """Leave a function."""
        del self._around[-2:]
        return updated_node

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:  # noqa: N802 - libcst's name
        """Change a class."""
        name = ".".join(self._around)
        self._around.pop()
        if name not in self._changes:
            return updated_node
        self.found[name] += 1
        return self._changes[name](updated_node)
