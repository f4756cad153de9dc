"""Finds where a module calls its own Functions, and where it makes instances of them."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pullback.check.find.scopes import FunctionNode, Scope, dotted, walk


@dataclass(frozen=True, slots=True)
class CallSite:
    """One `Name.apply(…)` in the module.

    Attributes:
        arguments: expressions, those by position.
        functions: around it, innermost first.
        inside_class: the innermost class around it.
    """

    arguments: tuple[ast.expr, ...]
    functions: tuple[FunctionNode, ...]
    inside_class: ast.ClassDef | None


def call_sites(tree: ast.Module, names: Collection[str]) -> dict[str, tuple[CallSite, ...]]:
    """Return the calls of each class of `names`.

    They are `Name.apply(…)`, `cls.apply(…)` in a method of the class, and `f(…)` after `f = Name.apply`.
    """
    aliases = _aliases(tree, names)
    sites: defaultdict[str, list[CallSite]] = defaultdict(list)
    for node, scope in walk(tree):
        if isinstance(node, ast.Call) and (called := dotted(node.func)):
            name = _applied(called, names, scope) or aliases.get(called)
            if name is not None:
                sites[name].append(CallSite(tuple(node.args), scope.functions[::-1], scope.parent))
    return {name: tuple(found) for name, found in sites.items()}


def instantiations(tree: ast.Module, names: Collection[str]) -> dict[str, tuple[tuple[ast.Call, bool], ...]]:
    """Return the calls `Name(…)` of each class of `names`, and whether the result is called at once.

    A class whose name the module also binds to another object is left out.
    """
    once = {name for name, times in Counter(_bound(tree)).items() if times == 1} & set(names)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    called = {id(call.func) for call in calls}
    found: defaultdict[str, list[tuple[ast.Call, bool]]] = defaultdict(list)
    for call in calls:
        if isinstance(call.func, ast.Name) and call.func.id in once:
            found[call.func.id].append((call, id(call) in called))
    return {name: tuple(made) for name, made in found.items()}


def _bound(tree: ast.Module) -> Iterator[str]:
    """Yield each name as often as something binds it: a definition, an import, an assignment, a parameter."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.alias(name=name, asname=asname):
                yield asname or name
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case _:
                pass


def _aliases(tree: ast.Module, names: Collection[str]) -> dict[str, str]:
    """Map each name or attribute that is assigned `Name.apply` to `Name`."""
    aliases: dict[str, str] = {}
    for node, scope in walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                pass
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                targets = [target]
            case _:
                continue
        if name := _applied(dotted(value), names, scope):
            aliases.update({alias: name for alias in map(dotted, targets) if alias})
    return aliases


def _applied(called: str, names: Collection[str], scope: Scope) -> str | None:
    owner, _, method = called.rpartition(".")
    if method != "apply":
        return None
    if owner == "cls" and scope.parent is not None:
        owner = scope.parent.name
    name = owner.rpartition(".")[2]
    return name if name in names else None
