"""Finds in a syntax tree alone the classes that derive from `torch.autograd.Function`."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

from pullback.check.find.scopes import Definition, dotted

TORCH_NAMES = frozenset({"Function", "InplaceFunction", "NestedIOFunction", "_SingleLevelFunction"})
"""PyTorch's names of the class itself and of its subclasses that serve as bases."""

_UNBOUND = frozenset({"Function", "InplaceFunction", "autograd.Function", "autograd.function.InplaceFunction"})


class Bases:
    """The bases of the classes of one file.

    Args:
        tree: the file.
        found: its classes and functions.
        known: names of Functions of other files, to be recognised where this file imports them.
    """

    def __init__(self, tree: ast.Module, found: Sequence[Definition], known: Collection[str] = ()) -> None:
        self._classes = {d.node.name: d for d in found if isinstance(d.node, ast.ClassDef)}
        self._known = frozenset(known)
        self._aliases = _aliases(tree)
        self._functions = self._close(found)

    def is_function(self, definition: Definition) -> bool:
        """Whether the class derives from `torch.autograd.Function`, at any distance within the file."""
        return definition in self._functions

    def of(self, definition: Definition) -> tuple[list[Definition], bool]:
        """Return the bases defined in this file, and whether any is defined neither here nor in PyTorch."""
        names = _base_names(definition)
        local = [self._classes[name.rpartition(".")[2]] for name in names if self._is_local(name)]
        return local, any(not (self._is_local(name) or self._is_torch(name)) for name in names)

    def _close(self, found: Sequence[Definition]) -> list[Definition]:
        classes = [d for d in found if isinstance(d.node, ast.ClassDef)]
        functions: list[Definition] = []
        while True:
            names = {d.node.name for d in functions}
            more = [d for d in classes if d not in functions and self._derives(d, names)]
            if not more:
                return sorted(functions, key=lambda d: d.first_line)
            functions += more

    def _derives(self, definition: Definition, functions: set[str]) -> bool:
        return any(
            self._is_torch(name)
            or (self._is_local(name) and name.rpartition(".")[2] in functions)
            or (not self._is_local(name) and name.rpartition(".")[2] in self._known)
            for name in _base_names(definition)
        )

    def _is_local(self, name: str) -> bool:
        head, last = name.partition(".")[0], name.rpartition(".")[2]
        return last in self._classes and (head in self._classes or head not in self._aliases)

    def _is_torch(self, name: str) -> bool:
        resolved = self._resolve(name)
        if resolved.rpartition(".")[2] not in TORCH_NAMES:
            return False
        if resolved.startswith(("torch.", ".")):
            return True
        return resolved in _UNBOUND and name.partition(".")[0] not in self._classes

    def _resolve(self, name: str) -> str:
        seen: set[str] = set()
        while (head := name.partition(".")[0]) in self._aliases and head not in seen:
            seen.add(head)
            name = self._aliases[head] + name[len(head) :]
        return name


def _base_names(definition: Definition) -> list[str]:
    assert isinstance(definition.node, ast.ClassDef)
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in definition.node.bases]
    return [name for name in map(dotted, bases) if name != "object"]


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Map each name that the file imports, or assigns from a dotted name, to the dotted name."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                for name in node.names:
                    head = name.name.partition(".")[0]
                    aliases[name.asname or head] = name.name if name.asname else head
            case ast.ImportFrom():
                module = "." * node.level + (node.module or "")
                for name in node.names:
                    aliases[name.asname or name.name] = f"{module}.{name.name}"
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if origin := dotted(value):
                aliases.setdefault(target, origin)
            case _:
                pass
    return {name: origin for name, origin in aliases.items() if name != origin}
