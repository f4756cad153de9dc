"""Who else than PyTorch calls the forward of a Function, or shares it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from pullback.check.find.parsed import read
from pullback.check.find.scopes import dotted
from pullback.check.find.target import package_of
from pullback.errors import TargetError


def objection(path: Path, qualname: str) -> str:
    """Return why the parameters of a forward may not change, judging by its file and package; empty if they may.

    Args:
        path: of the defining file.
        qualname: of the Function.
    """
    name = qualname.rpartition(".")[2]
    for file in _files(path):
        try:
            text = read(file)
            tree = ast.parse(text) if name in text else None
        except (TargetError, SyntaxError, ValueError, RecursionError):
            continue  # no Python: nothing in it can call anything
        if tree is None or (file != path and not _knows(tree, name)):
            continue
        for line, what in _uses(tree, name):
            return f"{what} in line {line} of {file.name}"
    return ""


def _files(path: Path) -> Iterator[Path]:
    """Yield the file and the others of its package, or, if it is in none, of its folder."""
    path = path.resolve()
    root, module = package_of(path)
    package = root / module.partition(".")[0]
    yield path
    for file in sorted(package.rglob("*.py") if package.is_dir() else path.parent.glob("*.py")):
        if file != path:
            yield file


def _knows(tree: ast.Module, name: str) -> bool:
    """Whether a module may mean the same class by a name: it imports it, or reads it off another module."""
    nodes = list(ast.walk(tree))
    imported = any(isinstance(node, ast.ImportFrom) and name in {a.name for a in node.names} for node in nodes)
    return imported or any(isinstance(node, ast.Attribute) and node.attr == name for node in nodes)


def _uses(tree: ast.Module, name: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            if any(dotted(base).rpartition(".")[2] == name for base in node.bases):
                yield node.lineno, f"{node.name} derives from it"
            if node.name == name:
                yield from _own_uses(node)
        elif isinstance(node, ast.Attribute) and node.attr == "forward" and _last(node.value) == name:
            yield node.lineno, "its forward is called by hand"


def _own_uses(cls: ast.ClassDef) -> Iterator[tuple[int, str]]:
    for node in ast.walk(cls):
        if isinstance(node, ast.Attribute) and node.attr == "forward" and dotted(node.value) in ("cls", "self"):
            yield node.lineno, "its forward is called by hand"


def _last(node: ast.expr) -> str:
    """Return the last name of `a.Name`, and of `a.Name()`."""
    return dotted(node.func if isinstance(node, ast.Call) else node).rpartition(".")[2]
