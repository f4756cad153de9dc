"""Syntax trees of custom functions: scopes, bases, call sites, and facts about methods. Nothing is executed."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

TORCH_NAMES = frozenset({"Function", "InplaceFunction", "NestedIOFunction", "_SingleLevelFunction"})
"""PyTorch's names of `Function` and of its subclasses that serve as bases."""
_UNBOUND = frozenset({"Function", "InplaceFunction", "autograd.Function", "autograd.function.InplaceFunction"})
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Scope:
    """Enclosing definitions of a node.

    Attributes:
        prefix: the part that `__qualname__` puts before a name defined here, e.g. "make.<locals>.".
        functions: the enclosing functions, outermost first.
        parent: the innermost enclosing class.
    """

    prefix: str = ""
    functions: tuple[FunctionNode, ...] = ()
    parent: ast.ClassDef | None = None


@dataclass(frozen=True, slots=True)
class ScopedDefinition:
    """A class or a function, and its scope."""

    node: ast.ClassDef | ast.FunctionDef
    scope: Scope

    @property
    def qualname(self) -> str:
        """Its `__qualname__`."""
        return self.scope.prefix + self.node.name

    @property
    def first_line(self) -> int:
        """Its first line, decorators included."""
        return min([self.node.lineno, *(decorator.lineno for decorator in self.node.decorator_list)])

    @property
    def last_line(self) -> int:
        """Its last line."""
        return self.node.end_lineno or self.node.lineno


def walk(tree: ast.Module) -> Iterator[tuple[ast.AST, Scope]]:
    """Yield every node below `tree` in source order, and its scope.

    Iterative: an expression may be nested deeper than Python's recursion limit.
    """
    pending: list[tuple[ast.AST, Scope]] = [(tree, Scope())]
    while pending:
        node, scope = pending.pop()
        yield node, scope
        inner = _inside(node, scope)
        pending += [(child, inner) for child in reversed(list(ast.iter_child_nodes(node)))]


def definitions(tree: ast.Module) -> list[ScopedDefinition]:
    """Return the classes and functions of `tree`, at any depth, in source order."""
    return [
        ScopedDefinition(node, scope) for node, scope in walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)
    ]


def dotted(node: ast.expr) -> str:
    """Return "a.b.c" for a chain of attributes on a name, and "" for any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _inside(node: ast.AST, scope: Scope) -> Scope:
    match node:
        case ast.ClassDef():
            return replace(scope, prefix=f"{scope.prefix}{node.name}.", parent=node)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return Scope(
                prefix=f"{scope.prefix}{node.name}.<locals>.",
                functions=(*scope.functions, node),
                parent=scope.parent,
            )
        case _:
            return scope


class Bases:
    """The bases of the classes of one file.

    Args:
        tree: the file.
        found: its classes and functions.
        known: names of Functions of other files, to be recognised where this file imports them.
    """

    def __init__(self, tree: ast.Module, found: Sequence[ScopedDefinition], known: Collection[str] = ()) -> None:
        self._classes = {d.node.name: d for d in found if isinstance(d.node, ast.ClassDef)}
        self._known = frozenset(known)
        self._aliases = _imported_names(tree)
        self._functions = self._close(found)

    def is_function(self, definition: ScopedDefinition) -> bool:
        """Whether the class derives from `torch.autograd.Function`, at any distance within the file."""
        return definition in self._functions

    def of(self, definition: ScopedDefinition) -> tuple[list[ScopedDefinition], bool]:
        """Return the bases defined in this file, and whether another base is defined neither here nor in PyTorch."""
        names = _base_names(definition)
        local = [self._classes[name.rpartition(".")[2]] for name in names if self._is_local(name)]
        return local, any(not (self._is_local(name) or self._is_torch(name)) for name in names)

    def _close(self, found: Sequence[ScopedDefinition]) -> list[ScopedDefinition]:
        classes = [d for d in found if isinstance(d.node, ast.ClassDef)]
        functions: list[ScopedDefinition] = []
        while True:
            names = {d.node.name for d in functions}
            more = [d for d in classes if d not in functions and self._derives(d, names)]
            if not more:
                return sorted(functions, key=lambda d: d.first_line)
            functions += more

    def _derives(self, definition: ScopedDefinition, functions: set[str]) -> bool:
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


def _base_names(definition: ScopedDefinition) -> list[str]:
    assert isinstance(definition.node, ast.ClassDef)
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in definition.node.bases]
    return [name for name in map(dotted, bases) if name != "object"]


def _imported_names(tree: ast.Module) -> dict[str, str]:
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


@dataclass(frozen=True, slots=True)
class CallSite:
    """One call `Name.apply(…)` in the module.

    Attributes:
        arguments: the positional ones.
        functions: the enclosing functions, innermost first.
        inside_class: the innermost enclosing class.
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
            name = _applied_class(called, names, scope) or aliases.get(called)
            if name is not None:
                sites[name].append(CallSite(tuple(node.args), scope.functions[::-1], scope.parent))
    return {name: tuple(found) for name, found in sites.items()}


def instantiations(tree: ast.Module, names: Collection[str]) -> dict[str, tuple[tuple[ast.Call, bool], ...]]:
    """Return the calls `Name(…)` of each class of `names`, and whether the result is called immediately.

    A class whose name the module also binds to another object is left out.
    """
    unambiguous = {name for name, times in Counter(_bound(tree)).items() if times == 1} & set(names)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    called = {id(call.func) for call in calls}
    found: defaultdict[str, list[tuple[ast.Call, bool]]] = defaultdict(list)
    for call in calls:
        if isinstance(call.func, ast.Name) and call.func.id in unambiguous:
            found[call.func.id].append((call, id(call) in called))
    return {name: tuple(made) for name, made in found.items()}


def _bound(tree: ast.Module) -> Iterator[str]:
    """Yield a name for each of its bindings: definitions, imports, assignments, parameters."""
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
        if name := _applied_class(dotted(value), names, scope):
            aliases.update({alias: name for alias in map(dotted, targets) if alias})
    return aliases


def _applied_class(called: str, names: Collection[str], scope: Scope) -> str | None:
    owner, _, method = called.rpartition(".")
    if method != "apply":
        return None
    if owner == "cls" and scope.parent is not None:
        owner = scope.parent.name
    name = owner.rpartition(".")[2]
    return name if name in names else None


def own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, except those of nested functions and classes."""
    queue: list[ast.AST] = list(function.body)
    while queue:
        node = queue.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            queue.extend(ast.iter_child_nodes(node))


def positional_parameters(function: ast.FunctionDef) -> list[str]:
    """Return the names of the positional parameters as written, with `self` or `cls`."""
    return [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]


def positional_arguments(function: ast.FunctionDef) -> list[ast.arg]:
    """Return the positional parameters that a caller passes: with `ctx`, without the `cls` of a classmethod."""
    found = [*function.args.posonlyargs, *function.args.args]
    return found[1:] if "classmethod" in decorator_names(function) else found


def names_read(function: ast.FunctionDef) -> set[str]:
    """Return the names that a function loads, in nested functions too."""
    return {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def decorator_names(function: ast.FunctionDef) -> set[str]:
    """Return the last names of the decorators, e.g. {"staticmethod", "once_differentiable"}."""
    found = set()
    for decorator in function.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        found.add(target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", ""))
    return found


def ast_text(function: ast.FunctionDef) -> str:
    """Return the source of a method, without comments."""
    return ast.unparse(function)


def returns_a_value(function: ast.FunctionDef) -> bool:
    """Whether a `return` gives a value other than None or a tuple of None."""
    for node in own_nodes(function):
        if isinstance(node, ast.Return) and node.value is not None:
            value = node.value.left if isinstance(node.value, ast.BinOp) else node.value  # (None,) * 5
            values = value.elts if isinstance(value, ast.Tuple) else [value]
            if any(not (isinstance(v, ast.Constant) and v.value is None) for v in values):
                return True
    return False
