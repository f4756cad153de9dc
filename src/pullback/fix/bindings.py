"""Names that a statement of a forward reads and binds, and its side effects."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def reads(node: ast.AST) -> set[str]:
    """Return the names that a node reads, except those local to a comprehension or lambda; `x += 1` reads `x`."""
    return set(_reads(node))


def _reads(node: ast.AST) -> Iterator[str]:
    inner = {name for child in ast.iter_child_nodes(node) for name in _reads(child)}
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
        yield node.id
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    if isinstance(node, _COMPREHENSIONS):
        inner -= {name for one in node.generators for name in _stored(one.target)}
    elif isinstance(node, ast.Lambda):
        inner -= {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
    yield from inner


def binds(node: ast.AST) -> set[str]:
    """Return the names of the function around it that a node binds, deletes or declares."""
    return set(_binds(node))


def _binds(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
            return
        case ast.alias(name=name, asname=asname):
            yield asname or name.partition(".")[0]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            yield from names
        case _:
            pass
    own = {name for one in node.generators for name in _stored(one.target)} if isinstance(node, _COMPREHENSIONS) else ()
    for child in ast.iter_child_nodes(node):
        yield from (name for name in _binds(child) if name not in own)


def _stored(target: ast.AST) -> Iterator[str]:
    return (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def own_returns(node: ast.AST) -> Iterator[ast.Return]:
    """Yield the return statements in a node, except those of nested functions."""
    if isinstance(node, ast.Return):
        yield node
    for child in () if isinstance(node, _FUNCTIONS) else ast.iter_child_nodes(node):
        yield from own_returns(child)


def writes(node: ast.AST) -> bool:
    """Whether a node may change a tensor in place, as far as its text shows."""
    for one in ast.walk(node):
        match one:
            case ast.AugAssign() | ast.Subscript(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()):
                return True
            case ast.keyword(arg="out"):
                return True
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
                if name.endswith("_") and not name.endswith("__"):
                    return True
            case _:
                pass
    return False
