"""Expressions that a setup_context may compute: those that cost nothing, and those that may be computed later."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from pullback.check.find.scopes import dotted

_FACTS = {"shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda"}
_ASKS = {
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
_OF_NUMBERS = {"len", "int", "float", "bool", "max", "min", "abs", "tuple", "list", "range", "isinstance"}
_MODULES = {"torch", "F", "math", "np", "numpy"}
_DRAWS = re.compile(r"rand|bernoulli|multinomial|normal|uniform|dropout|poisson|exponential|seed|empty")
_COMPOUND = (
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List, ast.Slice, ast.Subscript),
    *(ast.Starred, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)


def is_costless(node: ast.AST, is_plain: Callable[[str], bool]) -> bool:
    """Whether an expression consists of sizes, dtypes and numbers alone.

    Args:
        node: the expression.
        is_plain: whether a name is no tensor.
    """
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            return is_plain(name)
        case ast.Attribute(value=ast.Name(), attr=attr) if attr in _FACTS:
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(), attr=attr), keywords=[]) if attr in _ASKS:
            return all(is_costless(one, is_plain) for one in node.args)
        case ast.Call(func=func, keywords=[]) if dotted(func) in _OF_NUMBERS or dotted(func).startswith("math."):
            return all(is_costless(one, is_plain) or _is_len_of(func, one) for one in node.args)
        case _:
            children = ast.iter_child_nodes(node)
            return isinstance(node, _COMPOUND) and all(is_costless(child, is_plain) for child in children)


def _is_len_of(func: ast.expr, argument: ast.expr) -> bool:
    return dotted(func) in ("len", "isinstance") and isinstance(argument, ast.Name)


def is_repeatable(node: ast.AST, is_own: Callable[[str], bool]) -> bool:
    """Whether an expression, as far as its text shows, is pure and gives the same value whenever it is evaluated.

    Args:
        node: the expression.
        is_own: whether a name is local to the function, hence a tensor or a number and no module.
    """
    match node:
        case ast.Constant() | ast.Name():
            return True
        case ast.Attribute(value=value, attr=attr):
            return attr not in ("data", "grad") and is_repeatable(value, is_own)
        case ast.Call(func=func, args=args, keywords=keywords):
            values = [*args, *(one.value for one in keywords)]
            known = all(one.arg != "out" for one in keywords) and _is_known(func, is_own)
            return known and all(is_repeatable(one, is_own) for one in values)
        case _:
            children = ast.iter_child_nodes(node)
            return isinstance(node, _COMPOUND) and all(is_repeatable(child, is_own) for child in children)


def _is_known(func: ast.expr, is_own: Callable[[str], bool]) -> bool:
    """Whether a call is one of PyTorch's, of a module or of a tensor, that draws no numbers and changes nothing."""
    if not isinstance(func, ast.Attribute):
        return dotted(func) in _OF_NUMBERS
    if func.attr.endswith("_") or _DRAWS.search(func.attr):
        return False
    root = dotted(func).partition(".")[0]
    return (root in _MODULES or is_own(root)) if root else is_repeatable(func.value, is_own)
