"""Optional arguments of a Function that exclude each other, by code that raises where both are given."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations
from types import ModuleType

from pullback.check.cases.signature import positional_names
from pullback.check.subject import Subject

Pair = frozenset[str]
"""Names of two parameters of a forward."""


def exclusive_pairs(subject: Subject) -> frozenset[Pair]:
    """Return the parameters of a Function of which a call gives one or the other.

    A Function often takes what the function around it refuses: that alone checks its arguments.
    """
    if subject.kind != "function":
        return frozenset()
    names = positional_names(subject)
    return frozenset(
        pair
        for module in _homes(subject.target)
        for node in _applying(module, subject.target.__name__)
        for pair in _refused(node, subject.target.__name__, names)
    )


def _homes(function: type) -> Iterator[ModuleType]:
    """Yield the modules of a package that define or import a Function."""
    package = function.__module__.partition(".")[0]
    for name, module in list(sys.modules.items()):
        is_of_package = name.partition(".")[0] == package and type(module) is ModuleType
        if is_of_package and any(value is function for value in list(vars(module).values())):
            yield module


def _applying(module: ModuleType, name: str) -> Iterator[ast.FunctionDef]:
    """Yield the functions of a module that name a Function, and its own methods."""
    with suppress(OSError, TypeError, SyntaxError):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.ClassDef) and node.name == name:
                yield from (method for method in node.body if isinstance(method, ast.FunctionDef))
            elif isinstance(node, ast.FunctionDef) and any(_is_named(part, name) for part in ast.walk(node)):
                yield node


def _is_named(node: ast.AST, name: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)


def _refused(node: ast.FunctionDef, name: str, names: list[str]) -> Iterator[Pair]:
    """Yield the pairs of arguments that a function refuses, by their names in the forward of the Function."""
    passed = _names_of_passed(node, name, names)
    for test, is_refusal in _guards(node):
        known = {part.id for part in ast.walk(test) if isinstance(part, ast.Name)} & passed.keys()
        with suppress(_UnknownError):
            for pair in map(set, combinations(sorted(known), 2)):
                refused = [_value(test, given) == is_refusal for given in (pair, *({one} for one in pair))]
                if refused == [True, False, False]:
                    yield frozenset(passed[one] for one in pair)


def _names_of_passed(node: ast.FunctionDef, name: str, names: list[str]) -> dict[str, str]:
    """Return the variables that a function passes to `apply`, each with the parameter of the forward that it is."""
    found = {one: one for one in names}
    for call in ast.walk(node):
        match call:
            case ast.Call(func=ast.Attribute(attr="apply", value=value), args=args) if _is_named(value, name):
                passed = zip(args, names, strict=False)
                found |= {arg.id: parameter for arg, parameter in passed if isinstance(arg, ast.Name)}
    return found


def _guards(node: ast.FunctionDef) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the conditions of a function, and the value of each with which it raises."""
    for part in ast.walk(node):
        if isinstance(part, ast.Assert):
            yield part.test, False
        elif isinstance(part, ast.If) and any(isinstance(step, ast.Raise) for step in part.body):
            yield part.test, True


class _UnknownError(Exception):
    """A condition asks for more than which arguments are given."""


def _value(node: ast.expr, given: set[str]) -> object:
    """Return the value of a condition if the arguments of some names are given, and all others are None.

    Raises:
        _UnknownError: if it depends on more.
    """
    match node:
        case ast.Name(id=name):
            return True if name in given else None
        case ast.Constant(value=None):
            return None
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, given)
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_value(value, given) for value in values)
        case ast.BoolOp(op=ast.Or(), values=values):
            return any(_value(value, given) for value in values)
        case ast.Compare(left=left, ops=[ast.Is() | ast.Eq()], comparators=[right]):
            return _value(left, given) == _value(right, given)
        case ast.Compare(left=left, ops=[ast.IsNot() | ast.NotEq()], comparators=[right]):
            return _value(left, given) != _value(right, given)
        case ast.BinOp(left=left, op=ast.BitXor(), right=right):
            return _value(left, given) != _value(right, given)
    raise _UnknownError
