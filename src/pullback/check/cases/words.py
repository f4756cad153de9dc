"""Words and numbers that a function compares an argument with, such as "mean", "none" and 1.0, as its module tells."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator, Mapping

_MOST = 6
"""Words of an argument that are tried."""

Words = Mapping[str, tuple[str | float, ...]]
"""Words and floats by the name of the argument in small letters, in the order of the source."""


@functools.lru_cache(maxsize=64)
def words_in(file: str) -> Words:
    """Return what the code of a file compares its variables with, or looks up by them; nothing if it is unreadable."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return {}
    tables = _tables(tree)
    found: dict[str, dict[str | float, None]] = {}
    for node in ast.walk(tree):
        for name, words in _told(node, tables):
            found.setdefault(name.lower(), {}).update(dict.fromkeys(words))
    return {name: tuple(words)[:_MOST] for name, words in found.items()}


def _tables(tree: ast.Module) -> dict[str, tuple[str | float, ...]]:
    """Return the words that each variable of the module holds: the keys of a dictionary, or the items of a list."""
    assigned = ((target, node.value) for node in tree.body for target in _targets(node) if node.value is not None)  # type: ignore[attr-defined]
    return {target.id: words for target, value in assigned if (words := _words(value, {}))}


def _targets(node: ast.stmt) -> list[ast.Name]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target for target in targets if isinstance(target, ast.Name)]


def _told(node: ast.AST, tables: Words) -> Iterator[tuple[str, tuple[str | float, ...]]]:
    """Yield the variables of a comparison, a lookup or an annotation, with their words."""
    if isinstance(node, ast.Compare) and (name := _name(node.left)):
        for op, other in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn):
                yield name, _words(other, tables)
    elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and (name := _name(node.slice)):
        yield name, tables.get(node.value.id, ())
    elif isinstance(node, ast.arg) and node.annotation is not None:
        yield node.arg, _words(node.annotation, tables)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _words(node: ast.expr, tables: Words) -> tuple[str | float, ...]:
    """Return the words that an expression lists, or the float that it is."""
    match node:
        case ast.Constant(value=str(word)) | ast.Constant(value=float(word)):
            return (word,)
        case ast.Name(id=name):
            return tables.get(name, ())
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            return tuple(item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str))
        case ast.Dict(keys=keys):
            return tuple(key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
        case ast.Subscript(value=value, slice=chosen) if _name(value) in ("Literal", "Optional"):
            return _words(chosen, tables)
    return ()
