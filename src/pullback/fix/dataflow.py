"""Data flow of Python statements, by their text: names read and bound, in-place writes, purity of expressions."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator

from pullback.check.find.syntax import dotted

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

_METADATA_ATTRIBUTES = {"shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda"}
_METADATA_METHODS = {
    "size",
    "dim",
    "ndimension",
    "numel",
    "nelement",
    "stride",
    "element_size",
    "is_contiguous",
    "is_floating_point",
}
_SCALAR_FUNCTIONS = {"len", "int", "float", "bool", "max", "min", "abs", "tuple", "list", "range", "isinstance"}
_MODULES = {"torch", "F", "math", "np", "numpy"}
_RANDOM = re.compile(r"rand|bernoulli|multinomial|normal|uniform|dropout|poisson|exponential|seed|empty")
_COMPOUND = (
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List, ast.Slice, ast.Subscript),
    *(ast.Starred, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)


def names_read(node: ast.AST) -> set[str]:
    """Names that a node reads, except those local to a comprehension or lambda; `x += 1` reads `x`."""
    return set(_names_read(node))


def _names_read(node: ast.AST) -> Iterator[str]:
    inner = {name for child in ast.iter_child_nodes(node) for name in _names_read(child)}
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
        yield node.id
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    if isinstance(node, _COMPREHENSIONS):
        inner -= _loop_variables(node)
    elif isinstance(node, ast.Lambda):
        inner -= {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
    yield from inner


def names_bound(node: ast.AST) -> set[str]:
    """Names of the surrounding function that a node binds, deletes or declares."""
    return set(_names_bound(node))


def _names_bound(node: ast.AST) -> Iterator[str]:
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
    local = _loop_variables(node) if isinstance(node, _COMPREHENSIONS) else ()
    for child in ast.iter_child_nodes(node):
        yield from (name for name in _names_bound(child) if name not in local)


def _loop_variables(node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> set[str]:
    return {name.id for one in node.generators for name in ast.walk(one.target) if isinstance(name, ast.Name)}


def names_assigned(function: ast.FunctionDef) -> set[str]:
    """Names that a function assigns anywhere in it, a comprehension or a nested function included."""
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def unused_name(name: str, taken: Collection[str]) -> str:
    """The name, with underscores appended until it is not taken."""
    while name in taken:
        name += "_"
    return name


def own_returns(node: ast.AST) -> Iterator[ast.Return]:
    """Yield the return statements in a node, except those of nested functions."""
    if isinstance(node, ast.Return):
        yield node
    for child in () if isinstance(node, _FUNCTIONS) else ast.iter_child_nodes(node):
        yield from own_returns(child)


def may_write_in_place(node: ast.AST) -> bool:
    """Whether a node may write to a tensor in place: by an operator, an item, `out=`, or a method such as `relu_`."""
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


def is_metadata(node: ast.AST, is_scalar: Callable[[str], bool]) -> bool:
    """Whether an expression consists of sizes, dtypes and Python numbers alone, and so costs nothing.

    Args:
        node: the expression.
        is_scalar: whether a name is known to hold no tensor.
    """
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            return is_scalar(name)
        case ast.Attribute(value=ast.Name(), attr=attr) if attr in _METADATA_ATTRIBUTES:
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(), attr=attr), keywords=[]) if attr in _METADATA_METHODS:
            return all(is_metadata(one, is_scalar) for one in node.args)
        case ast.Call(func=func, keywords=[]) if dotted(func) in _SCALAR_FUNCTIONS or dotted(func).startswith("math."):
            return all(is_metadata(one, is_scalar) or _asks_only_length_or_type(func, one) for one in node.args)
        case _:
            children = ast.iter_child_nodes(node)
            return isinstance(node, _COMPOUND) and all(is_metadata(child, is_scalar) for child in children)


def _asks_only_length_or_type(func: ast.expr, argument: ast.expr) -> bool:
    return dotted(func) in ("len", "isinstance") and isinstance(argument, ast.Name)


def is_pure(node: ast.AST, is_local: Callable[[str], bool]) -> bool:
    """Whether an expression, by its text, has no side effects and the same value whenever it is evaluated.

    Args:
        node: the expression.
        is_local: whether a name is local to the function: a tensor or a number, and no module.
    """
    match node:
        case ast.Constant() | ast.Name():
            return True
        case ast.Attribute(value=value, attr=attr):
            return attr not in ("data", "grad") and is_pure(value, is_local)
        case ast.Call(func=func, args=args, keywords=keywords):
            values = [*args, *(one.value for one in keywords)]
            known = all(one.arg != "out" for one in keywords) and _is_pure_function(func, is_local)
            return known and all(is_pure(one, is_local) for one in values)
        case _:
            children = ast.iter_child_nodes(node)
            return isinstance(node, _COMPOUND) and all(is_pure(child, is_local) for child in children)


def _is_pure_function(func: ast.expr, is_local: Callable[[str], bool]) -> bool:
    """Whether a function is one of PyTorch's, of a module or of a tensor, and neither random nor in place."""
    if not isinstance(func, ast.Attribute):
        return dotted(func) in _SCALAR_FUNCTIONS
    if func.attr.endswith("_") or _RANDOM.search(func.attr):
        return False
    root = dotted(func).partition(".")[0]
    return (root in _MODULES or is_local(root)) if root else is_pure(func.value, is_local)
