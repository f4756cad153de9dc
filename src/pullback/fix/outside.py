"""Numbers that a forward reads from outside of itself, and that a backward written from it holds as constants."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

_NONE = object()


def changeable(forward: Callable[..., Any], node: ast.FunctionDef) -> list[str]:
    """Return those that may change while the program runs, each with its value, as "SCALES['a'] = 2.0".

    These are attributes of objects and classes, items of containers, and variables that some function rebinds. Other
    variables of a module count as constants, and so does what a module holds, such as `math.pi`.
    """
    variables = inspect.getclosurevars(inspect.unwrap(forward))
    outside = {**variables.globals, **variables.nonlocals}
    rebound = {*variables.nonlocals, *_rebound(forward)}
    found: dict[str, None] = {}
    for expression in _reads(node):
        value = _value(expression, outside)
        is_plain = isinstance(expression, ast.Name) and expression.id not in rebound
        if isinstance(value, int | float | complex) and not is_plain:
            found[f"{ast.unparse(expression)} = {value!r}"] = None
    return list(found)


def _rebound(forward: Callable[..., Any]) -> set[str]:
    """Return the variables of a module that a function in it declares global."""
    try:
        tree = ast.parse(inspect.getsource(inspect.getmodule(forward) or forward))
    except (OSError, TypeError, SyntaxError):
        return set()
    return {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}


def _reads(node: ast.AST) -> Iterator[ast.expr]:
    """Yield names, and the longest chains of attributes and items that begin with one."""
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        yield node
        if isinstance(node, ast.Subscript):
            yield from _reads(node.slice)
        return
    for child in ast.iter_child_nodes(node):
        yield from _reads(child)


def _value(expression: ast.expr, outside: dict[str, Any]) -> Any:
    """Return the value of an expression that begins outside of the function, and with no module; else `_NONE`."""
    match expression:
        case ast.Name(id=name):
            value = outside.get(name, _NONE)
            return _NONE if isinstance(value, ModuleType) else value
        case ast.Attribute(value=owner, attr=name):
            return inspect.getattr_static(_value(owner, outside), name, _NONE)
        case ast.Subscript(value=owner, slice=ast.Constant(value=key)):
            held = _value(owner, outside)
            items: Any = dict(enumerate(held)) if isinstance(held, list | tuple) else held
            return items.get(key, _NONE) if isinstance(items, dict) else _NONE
    return _NONE
