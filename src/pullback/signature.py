"""The signature of a rule: whether it fits the formula's, and which of its parameters it never reads."""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Callable
from typing import Any

from pullback.errors import OptionError
from pullback.ruled.rule import Rule

_BY_NAME = frozenset({"locals", "eval", "exec", "vars", "sys", "inspect"})
"""Functions by which a function can read its parameters without naming them."""


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a keyword-only parameter of this name."""
    parameter = inspect.signature(function).parameters.get(name)
    return parameter is not None and parameter.kind is inspect.Parameter.KEYWORD_ONLY


def require_signature(rule: Rule, what: str, function: Callable[..., Any]) -> None:
    """Raise an `OptionError` if a rule cannot be called as it will be.

    Where the formula has a variable number of parameters, or the rule's own are not known, anything goes.
    """
    if not callable(function):
        raise OptionError(f"the {what} of {rule.name} is {function!r}: it has to be a function.")
    by_name = [p.name for p in _parameters(rule.formula) if p.kind is p.KEYWORD_ONLY]
    if by_name:
        raise OptionError(
            f"{rule.name} takes {', '.join(by_name)} by keyword alone, and a rule takes its inputs by position: leave "
            "out the `*` of its signature."
        )
    first = "g" if what == "vjp" else "tangents"
    expected = [first, "out", *(["saved"] if rule.residuals else []), *rule.parameters]
    try:
        signature = inspect.signature(function)
    except ValueError:
        return
    if any(p.kind in {p.VAR_POSITIONAL, p.VAR_KEYWORD} for p in _parameters(rule.formula)):
        return
    options = {"needs": ()} if what == "vjp" and takes(function, "needs") else {}
    try:
        signature.bind(*expected, **options)
    except TypeError as error:
        raise OptionError(
            f"the {what} of {rule.name} is called as ({', '.join(expected)}), and is defined as {signature}: {error}."
        ) from None


def _parameters(formula: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a formula; none where they are not known, as of a built-in function."""
    try:
        return list(inspect.signature(formula).parameters.values())
    except ValueError:
        return []


def require_same_arguments(formula: Callable[..., Any], soft: Callable[..., Any]) -> None:
    """Raise an `OptionError` if a relaxation cannot be called as its op may be.

    Where the signature of one is not known, or it takes any number of arguments, anything goes.
    """
    try:
        given, taken = inspect.signature(formula), inspect.signature(soft)
    except ValueError:
        return
    parameters = list(given.parameters.values())
    if any(p.kind in {p.VAR_POSITIONAL, p.VAR_KEYWORD} for p in parameters):
        return
    required = [p for p in parameters if p.default is p.empty]
    for some in (parameters, required):
        try:
            taken.bind(
                *[p.name for p in some if p.kind is not p.KEYWORD_ONLY],
                **{p.name: p.name for p in some if p.kind is p.KEYWORD_ONLY},
            )
        except TypeError as error:
            name = getattr(formula, "__name__", "the formula")
            raise OptionError(
                f"{name} takes {given} and its relaxation {taken}: {error}. A relaxation takes the same arguments."
            ) from None


def renamed(formula: Callable[..., Any], soft: Callable[..., Any]) -> dict[str, str]:
    """Map the names of an op's parameters to those of its relaxation where these differ."""
    pairs = zip(_parameters(formula), _parameters(soft), strict=False)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD,) * 2
    return {a.name: b.name for a, b in pairs if (a.kind, b.kind) == kinds and a.name != b.name}


def unread(function: Callable[..., Any]) -> set[int]:
    """Return the positions of the parameters that a Python function never reads: these need not be saved.

    Return `None` if unknown: for a method, whose code counts `self`, and for code that can read by name.
    """
    if not isinstance(function, types.FunctionType) or _BY_NAME.intersection(function.__code__.co_names):
        return set()
    code = function.__code__
    read: set[str] = set(code.co_cellvars)
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith("LOAD_FAST") or instruction.opname.startswith("STORE_FAST_LOAD_FAST"):
            names = instruction.argval
            read |= set(names) if isinstance(names, tuple) else {names}
    return {i for i, name in enumerate(code.co_varnames[: code.co_argcount]) if name not in read}
