"""Small questions to a method's syntax tree, shared by static rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, except those of nested functions and classes."""
    queue: list[ast.AST] = list(function.body)
    while queue:
        node = queue.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            queue.extend(ast.iter_child_nodes(node))


def positional_arguments(function: ast.FunctionDef) -> list[ast.arg]:
    """Return the positional parameters that a caller passes: `ctx` included, the `cls` of a classmethod not."""
    found = [*function.args.posonlyargs, *function.args.args]
    return found[1:] if "classmethod" in decorator_names(function) else found


def names_read(function: ast.FunctionDef) -> set[str]:
    """Return every name that the function reads anywhere, nested functions included."""
    return {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def decorator_names(function: ast.FunctionDef) -> set[str]:
    """Return the last names of the decorators, e.g. {"staticmethod", "once_differentiable"}."""
    found = set()
    for decorator in function.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        found.add(target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", ""))
    return found


def ast_text(function: ast.FunctionDef) -> str:
    """Return the source of a method, without comments."""
    return ast.unparse(function)


def returns_a_value(function: ast.FunctionDef) -> bool:
    """Whether some `return` gives more than None (in every place of its tuple)."""
    for node in own_nodes(function):
        if isinstance(node, ast.Return) and node.value is not None:
            value = node.value.left if isinstance(node.value, ast.BinOp) else node.value  # (None,) * 5
            values = value.elts if isinstance(value, ast.Tuple) else [value]
            if any(not (isinstance(v, ast.Constant) and v.value is None) for v in values):
                return True
    return False
