"""Walks a syntax tree in source order, knowing at each node which functions and classes are around it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Scope:
    """Enclosing definitions of a node.

    Attributes:
        prefix: the part that `__qualname__` puts before a name defined here, e.g. "make.<locals>.".
        functions: the enclosing functions, outermost first.
        parent: the innermost enclosing class.
    """

    prefix: str = ""
    functions: tuple[FunctionNode, ...] = ()
    parent: ast.ClassDef | None = None


@dataclass(frozen=True, slots=True)
class Definition:
    """A class or a function, and its scope."""

    node: ast.ClassDef | ast.FunctionDef
    scope: Scope

    @property
    def qualname(self) -> str:
        """Its `__qualname__`."""
        return self.scope.prefix + self.node.name

    @property
    def first_line(self) -> int:
        """Its first line, decorators included."""
        return min([self.node.lineno, *(decorator.lineno for decorator in self.node.decorator_list)])

    @property
    def last_line(self) -> int:
        """Its last line."""
        return self.node.end_lineno or self.node.lineno


def walk(tree: ast.Module) -> Iterator[tuple[ast.AST, Scope]]:
    """Yield every node below `tree` in source order, with its scope.

    Iterative: an expression may be nested deeper than Python's recursion limit.
    """
    pending: list[tuple[ast.AST, Scope]] = [(tree, Scope())]
    while pending:
        node, scope = pending.pop()
        yield node, scope
        inner = _inside(node, scope)
        pending += [(child, inner) for child in reversed(list(ast.iter_child_nodes(node)))]


def definitions(tree: ast.Module) -> list[Definition]:
    """Return the classes and functions of `tree`, at any depth, in source order."""
    return [Definition(node, scope) for node, scope in walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)]


def dotted(node: ast.expr) -> str:
    """Return "a.b.c" for a chain of attributes on a name, and "" for any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _inside(node: ast.AST, scope: Scope) -> Scope:
    match node:
        case ast.ClassDef():
            return replace(scope, prefix=f"{scope.prefix}{node.name}.", parent=node)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return Scope(
                prefix=f"{scope.prefix}{node.name}.<locals>.",
                functions=(*scope.functions, node),
                parent=scope.parent,
            )
        case _:
            return scope
