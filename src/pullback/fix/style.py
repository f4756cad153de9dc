"""The style of a Function's source: old or new, and its names."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from pullback.check.find.source import FunctionSource
from pullback.check.subject import Subject
from pullback.fix.model import CannotFixError


@dataclass(frozen=True, slots=True)
class Style:
    """Names that a Function's author uses.

    Attributes:
        is_old: whether the forward takes the context, and saves.
        ctx: the context, in the backward.
        parameters: of the forward, without the context.
        cotangents: further parameters of the backward; empty if they are not plain names.
        outputs: names that the forward returns at its end; empty if it returns other expressions.
    """

    is_old: bool
    ctx: str
    parameters: tuple[str, ...]
    cotangents: tuple[str, ...]
    outputs: tuple[str, ...]


def style_of(subject: Subject) -> Style:
    """Return the style of a Function.

    Raises:
        CannotFixError: if its source is not available, or is not that of one class with a forward and a backward.
    """
    source = own_source(subject)
    if "jvp" in source.methods and _reads_saved(source.methods["jvp"]):
        raise CannotFixError("its jvp reads what is saved for the backward, which would change")
    forward, backward = source.methods["forward"], source.methods["backward"]
    is_old = not source.defines("setup_context")
    parameters = _plain_parameters(forward)
    takes = _plain_parameters(backward)
    if parameters is None or (is_old and not parameters):
        raise CannotFixError("its forward takes *args or keywords, of which there may be any number")
    has_names = takes is not None and len(takes) > 1
    return Style(
        is_old=is_old,
        ctx=takes[0] if takes else "ctx",
        parameters=tuple(parameters[is_old:]),
        cotangents=tuple(takes[1:]) if takes is not None and has_names else (),
        outputs=_returned_names(forward),
    )


def own_source(subject: Subject) -> FunctionSource:
    """Return the source of a Function.

    Raises:
        CannotFixError: if it is not available, or is not that of one class with a forward and a backward.
    """
    source = subject.source
    if source is None or not isinstance(source.node, ast.ClassDef):
        raise CannotFixError("its source is in no file")
    if source.factories:
        raise CannotFixError(f"it is defined inside {source.factories[-1]}(), of which any call may make another")
    own = {node.name for node in source.node.body if isinstance(node, ast.FunctionDef)}
    for name in ("forward", "backward"):
        if name in source.assigned:
            raise CannotFixError(f"its {name} is assigned, not defined in it")
        if name not in own:
            raise CannotFixError(f"its {name} is not defined in it but in a class that it derives from")
    return source


def _plain_parameters(method: ast.FunctionDef) -> list[str] | None:
    """Return the names of positional parameters; `None` if there are others."""
    a = method.args
    return None if a.vararg or a.kwarg or a.kwonlyargs else [p.arg for p in (*a.posonlyargs, *a.args)]


def _returned_names(forward: ast.FunctionDef) -> tuple[str, ...]:
    """Return the names in the one return statement of a forward, if it is the last and has names alone."""
    returns = [node for node in ast.walk(forward) if isinstance(node, ast.Return)]
    if len(returns) != 1 or forward.body[-1] is not returns[0]:
        return ()
    value = returns[0].value
    parts = value.elts if isinstance(value, ast.Tuple) else [value]
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    return tuple(names) if len(names) == len(parts) else ()


def _reads_saved(method: ast.FunctionDef) -> bool:
    read = {node.attr for node in ast.walk(method) if isinstance(node, ast.Attribute)}
    return bool(read & {"saved_tensors", "saved_for_forward", "saved_variables"})


def rebound_in(forward: ast.FunctionDef) -> set[str]:
    """Return the names that a forward assigns anywhere, its parameters among them if it does."""
    return {node.id for node in ast.walk(forward) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
