"""The parameters of a subject as its callers see them, and the function behind them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch

from pullback._torch import custom_op_function, is_dispatched_op, op_parameters
from pullback.check.find.source import plain_function, source_of
from pullback.check.subject import Subject

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def parameters(subject: Subject) -> list[inspect.Parameter]:
    """Return the parameters that a caller of the subject passes (without `ctx`)."""
    if subject.kind == "function":
        cls = subject.target
        old_style = cls.setup_context is torch.autograd.Function.setup_context
        found = list(_signature(cls.forward).parameters.values())
        return found[1:] if old_style else found
    if is_dispatched_op(subject.target):
        return op_parameters(subject.target)
    function = custom_op_function(subject.target) if subject.kind == "op" else subject.target
    function = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        return list(_signature(function).parameters.values())
    except (TypeError, ValueError):
        return [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)]


def _signature(function: Any) -> inspect.Signature:
    """Return a signature, with annotations that are text evaluated, where they can be."""
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # of whatever an annotation names
        return inspect.signature(function)


def positional_names(subject: Subject) -> list[str]:
    """Return the names of the positional parameters, for messages."""
    return [p.name for p in parameters(subject) if p.kind in _POSITIONAL]


def argument_lists(subject: Subject) -> Iterator[list[inspect.Parameter]]:
    """Yield the positional parameters, `*args` unrolled: as unpacked, as passed, or one, two and three."""
    fixed = [p for p in parameters(subject) if p.kind in _POSITIONAL]
    variadic = [p for p in parameters(subject) if p.kind is inspect.Parameter.VAR_POSITIONAL]
    if not variadic:
        yield fixed
        return
    sites = subject.source.call_sites if subject.source else ()
    counts = [len(site.arguments) - len(fixed) for site in sites]
    unpacked = _unpacked(definition(subject), variadic[0].name)
    numbered = [[f"{variadic[0].name}_{i}" for i in range(count)] for count in (*counts, 1, 2, 3)]
    named = [unpacked, *(names for names in numbered if len(names) != len(unpacked))]
    for names in dict.fromkeys(tuple(names) for names in named if names):
        yield [*fixed, *(inspect.Parameter(name, _POSITIONAL[1]) for name in names)]


def _unpacked(node: ast.FunctionDef | None, name: str) -> list[str]:
    """Return the names that a function unpacks its `*name` into, a number in place of any other target; or none."""
    for statement in ast.walk(node) if node is not None else ():
        match statement:
            case ast.Assign(targets=[ast.Tuple(elts=items)], value=ast.Name(id=unpacked)) if unpacked == name:
                if not any(isinstance(item, ast.Starred) for item in items):
                    return [item.id if isinstance(item, ast.Name) else f"{name}_{i}" for i, item in enumerate(items)]
    return []


def called_function(subject: Subject) -> FunctionType | None:
    """Return the Python function that a call of the subject runs: of a Function its forward."""
    return plain_function(subject.target.forward if subject.kind == "function" else subject.target)


def definition(subject: Subject) -> ast.FunctionDef | None:
    """Return the syntax tree of `called_function`, wherever that is written."""
    function = called_function(subject)
    source = source_of(function) if function is not None else None
    return source.methods.get("forward") if source is not None else None
