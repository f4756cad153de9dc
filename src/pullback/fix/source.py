"""Source of a Function: whether it can be edited, the names in it, and the numbers that its forward captures."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pullback.check.find.source import FunctionSource
from pullback.check.find.syntax import positional_parameters
from pullback.check.subject import Subject
from pullback.fix.patch import CannotFixError

_UNKNOWN = object()


@dataclass(frozen=True, slots=True)
class SourceNames:
    """Names that a Function's author uses.

    Attributes:
        is_old: whether the forward takes the context, and saves.
        ctx: the context, in the backward.
        parameters: parameters of the forward, without the context.
        cotangents: further parameters of the backward; empty if they are not plain names.
        outputs: names that the forward returns at its end; empty if it returns other expressions.
    """

    is_old: bool
    ctx: str
    parameters: tuple[str, ...]
    cotangents: tuple[str, ...]
    outputs: tuple[str, ...]


def source_names(subject: Subject) -> SourceNames:
    """Names in the source of a Function.

    Raises:
        CannotFixError: if its source cannot be edited, or a new backward would break its `jvp`.
    """
    source = editable_source(subject)
    if "jvp" in source.methods and _reads_saved_tensors(source.methods["jvp"]):
        raise CannotFixError("its jvp reads the saved tensors, which a new backward would change")
    forward, backward = source.methods["forward"], source.methods["backward"]
    is_old = not source.defines("setup_context")
    parameters = plain_parameters(forward)
    taken = plain_parameters(backward) or []
    if parameters is None or (is_old and not parameters):
        raise CannotFixError("its forward takes *args or keyword arguments, whose number is unknown")
    return SourceNames(
        is_old=is_old,
        ctx=taken[0] if taken else "ctx",
        parameters=tuple(parameters[is_old:]),
        cotangents=tuple(taken[1:]),
        outputs=_returned_names(forward),
    )


def editable_source(subject: Subject) -> FunctionSource:
    """Source of a Function, if it is that of one class with a forward and a backward.

    Raises:
        CannotFixError: if it is not, or is not available.
    """
    source = subject.source
    if source is None or not isinstance(source.node, ast.ClassDef):
        raise CannotFixError("its source is in no file")
    if source.factories:
        raise CannotFixError(f"it is defined inside {source.factories[-1]}(), which makes a class at each call")
    own = {node.name for node in source.node.body if isinstance(node, ast.FunctionDef)}
    for name in ("forward", "backward"):
        if name in source.assigned:
            raise CannotFixError(f"its {name} is assigned, not defined in its class")
        if name not in own:
            raise CannotFixError(f"its {name} is inherited, not defined in its class")
    return source


def plain_parameters(method: ast.FunctionDef) -> list[str] | None:
    """Names of the positional parameters; `None` if there are others."""
    a = method.args
    return None if a.vararg or a.kwarg or a.kwonlyargs else positional_parameters(method)


def _returned_names(forward: ast.FunctionDef) -> tuple[str, ...]:
    """Names in the one return statement of a forward, if it is the last statement and has names alone."""
    returns = [node for node in ast.walk(forward) if isinstance(node, ast.Return)]
    if len(returns) != 1 or forward.body[-1] is not returns[0]:
        return ()
    value = returns[0].value
    parts = value.elts if isinstance(value, ast.Tuple) else [value]
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    return tuple(names) if len(names) == len(parts) else ()


def _reads_saved_tensors(method: ast.FunctionDef) -> bool:
    attributes = {node.attr for node in ast.walk(method) if isinstance(node, ast.Attribute)}
    return bool(attributes & {"saved_tensors", "saved_for_forward", "saved_variables"})


def mutable_captures(forward: Callable[..., Any], node: ast.FunctionDef) -> list[str]:
    """Numbers that a forward reads from outside and that may change at run time, each as "SCALES['a'] = 2.0".

    A derived backward holds them as constants. They are attributes of objects and classes, items of containers, and
    variables that some function rebinds. Other variables of a module count as constants, as do its attributes, such as
    `math.pi`.
    """
    variables = inspect.getclosurevars(inspect.unwrap(forward))
    outside = {**variables.globals, **variables.nonlocals}
    rebound = {*variables.nonlocals, *_rebound_globals(forward)}
    found: dict[str, None] = {}
    for expression in _captures(node):
        value = _value(expression, outside)
        is_constant = isinstance(expression, ast.Name) and expression.id not in rebound
        if isinstance(value, int | float | complex) and not is_constant:
            found[f"{ast.unparse(expression)} = {value!r}"] = None
    return list(found)


def _rebound_globals(forward: Callable[..., Any]) -> set[str]:
    """Variables that a function of the module declares global."""
    try:
        tree = ast.parse(inspect.getsource(inspect.getmodule(forward) or forward))
    except (OSError, TypeError, SyntaxError):
        return set()
    return {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}


def _captures(node: ast.AST) -> Iterator[ast.expr]:
    """Yield names, and the longest chains of attributes and items that begin with one."""
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        yield node
        if isinstance(node, ast.Subscript):
            yield from _captures(node.slice)
        return
    for child in ast.iter_child_nodes(node):
        yield from _captures(child)


def _value(expression: ast.expr, outside: dict[str, Any]) -> Any:
    """Value of a chain that begins with a variable from outside which is not a module; else `_UNKNOWN`."""
    match expression:
        case ast.Name(id=name):
            value = outside.get(name, _UNKNOWN)
            return _UNKNOWN if isinstance(value, ModuleType) else value
        case ast.Attribute(value=owner, attr=name):
            return inspect.getattr_static(_value(owner, outside), name, _UNKNOWN)
        case ast.Subscript(value=owner, slice=ast.Constant(value=key)):
            container = _value(owner, outside)
            items: Any = dict(enumerate(container)) if isinstance(container, list | tuple) else container
            return items.get(key, _UNKNOWN) if isinstance(items, dict) else _UNKNOWN
    return _UNKNOWN
