"""A file with the backwards of some of its classes replaced; everything else stays byte for byte."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import libcst as cst
from libcst import matchers as m

from pullback.fix.edit_class import with_backward
from pullback.fix.model import CannotFixError, Derived

_FUNCTIONAL = "torch.nn.functional"
_EMPTY = cst.Module([])


def edited(source: bytes, changes: Mapping[str, Derived]) -> bytes:
    """Return the source of a file with new backwards.

    Args:
        source: of the file, in whatever encoding it declares.
        changes: the new backwards, by the qualified names of their classes.

    Raises:
        CannotFixError: if a class is not written so that this can be done.
    """
    try:
        module = cst.parse_module(source)
    except cst.ParserSyntaxError as error:
        raise CannotFixError(f"its file cannot be parsed: {error.message}") from None
    if not _has_functional(module):
        changes = {name: _spelled_out(derived) for name, derived in changes.items()}
    editor = _Editor(changes)
    module = module.visit(editor)
    for name in changes:
        if editor.found[name] != 1:
            raise CannotFixError(f"its file defines {name} {editor.found[name]} times")
    text = "\n".join(line for derived in changes.values() for line in derived.body)
    if re.search(r"\btorch\.", text) and not _has_torch(module):
        module = _with_import(module)
    return module.bytes


def _has_functional(module: cst.Module) -> bool:
    """Whether `F` is torch.nn.functional in a module."""
    return any(
        alias.evaluated_alias == "F" and f"{prefix}{alias.evaluated_name}" == _FUNCTIONAL
        for prefix, alias in _imported(module)
    )


def _has_torch(module: cst.Module) -> bool:
    """Whether `torch` is imported under its name."""
    return any(
        not prefix and alias.asname is None and alias.evaluated_name.partition(".")[0] == "torch"
        for prefix, alias in _imported(module)
    )


def _imported(module: cst.Module) -> Iterator[tuple[str, cst.ImportAlias]]:
    """Yield what a module imports at its top level, with the module that it comes from and a dot, if it names one."""
    for statement in module.body:
        for one in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            if isinstance(one, cst.Import):
                yield from (("", alias) for alias in one.names)
            elif isinstance(one, cst.ImportFrom) and not isinstance(one.names, cst.ImportStar) and one.module:
                yield from ((f"{_EMPTY.code_for_node(one.module)}.", alias) for alias in one.names)


def _with_import(module: cst.Module) -> cst.Module:
    """Return a module that imports torch, after its other imports at the top."""
    imports = m.SimpleStatementLine([m.OneOf(m.Import(), m.ImportFrom())])
    places = [i for i, statement in enumerate(module.body) if m.matches(statement, imports)]
    body = list(module.body)
    body.insert(places[0] + 1 if places else 0, cst.parse_statement("import torch"))
    return module.with_changes(body=body)


def _spelled_out(derived: Derived) -> Derived:
    return replace(derived, body=tuple(re.sub(r"\bF\.", f"{_FUNCTIONAL}.", line) for line in derived.body))


class _Editor(cst.CSTTransformer):
    """Replaces backwards, and counts the classes of each name."""

    def __init__(self, changes: Mapping[str, Derived]) -> None:
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
        """Give a class its new backward."""
        name = ".".join(self._around)
        self._around.pop()
        derived = self._changes.get(name)
        if derived is None:
            return updated_node
        self.found[name] += 1
        return with_backward(updated_node, derived)
