"""Finds where a module calls its own Functions."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from pullback.check.find.scopes import Scope, dotted, walk


@dataclass(frozen=True, slots=True)
class CallSite:
    """One `Name.apply(…)` in the module: the argument expressions and the function around it, if any."""

    arguments: tuple[ast.expr, ...]
    inside: ast.FunctionDef | None
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
                sites[name].append(CallSite(tuple(node.args), scope.function, scope.parent))
    return {name: tuple(found) for name, found in sites.items()}


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
