"""Parsed Python files, and the custom functions in their syntax trees."""

from __future__ import annotations

import ast
import functools
import tokenize
import warnings
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from pullback.check.find.allow import Comment, allowed, comments
from pullback.check.find.bases import Bases
from pullback.check.find.calls import CallSite, call_sites, instantiations
from pullback.check.find.scopes import Definition, definitions
from pullback.errors import TargetError


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """The source of one `autograd.Function` class (or plain function, then only `forward` is set).

    Attributes:
        name: the class's name.
        qualname: with the classes and functions around it, e.g. "make.<locals>.Op".
        file: path of the file.
        line, end_line: first (decorators included) and last line of the definition.
        node: the class (or function) itself.
        methods: its methods by name: "forward", "backward", "setup_context", "jvp", "vmap", …, with those it
            inherits from a class of the same file.
        factories: names of the functions it is defined inside, outermost first; empty at module level.
        allow: rule name or id -> reason, of each `# pullback: allow[NAME] reason` in it or directly above.
        allow_without_reason: lines of allow comments that give no reason and so do not count.
        call_sites: where the module calls it.
        instantiations: where the module makes an instance of it, and whether it calls that at once.
        docstring: of the class.
        inherits: whether it also derives from a class of another file, whose methods are not in `methods`.
        assigned: names that its body assigns, e.g. "forward" of `forward = staticmethod(f)`.
    """

    name: str
    qualname: str
    file: str
    line: int
    end_line: int
    node: ast.ClassDef | ast.FunctionDef
    methods: dict[str, ast.FunctionDef] = field(default_factory=dict)
    factories: tuple[str, ...] = ()
    allow: dict[str, str] = field(default_factory=dict)
    allow_without_reason: tuple[int, ...] = ()
    call_sites: tuple[CallSite, ...] = ()
    instantiations: tuple[tuple[ast.Call, bool], ...] = ()
    docstring: str = ""
    inherits: bool = False
    assigned: frozenset[str] = frozenset()

    def allows(self, *names: str) -> bool:
        """Whether a comment allows the findings of a rule, by one of the names or ids that it goes by."""
        return not self.allow.keys().isdisjoint(names)

    def defines(self, *names: str) -> bool:
        """Whether it has one of these methods, however it is given; true if a class elsewhere may give it."""
        return self.inherits or any(name in self.methods or name in self.assigned for name in names)


class SourceFile:
    """One parsed file: its classes and functions, and facts about each.

    Args:
        text: the file's content.
        file: its path, for `FunctionSource.file` and messages.

    Raises:
        TargetError: it is not valid Python.
    """

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.tree = _parse(text, file)
        self.definitions = definitions(self.tree)
        self._text = text
        self._bases = Bases(self.tree, self.definitions)

    def functions(self, known: Collection[str] = ()) -> list[FunctionSource]:
        """Return the classes that derive from `autograd.Function` or from a class in `known`."""
        bases = self._bases_with(known)
        return [self.describe(d) for d in self.definitions if bases.is_function(d)]

    def function_names(self, known: Collection[str] = ()) -> set[str]:
        """Return the names of `functions(known)`."""
        bases = self._bases_with(known)
        return {d.node.name for d in self.definitions if bases.is_function(d)}

    def describe(self, definition: Definition) -> FunctionSource:
        """Return the source of one of `definitions`."""
        node = definition.node
        allow, without_reason = allowed(self._comments, definition.first_line, definition.last_line)
        is_class = isinstance(node, ast.ClassDef)
        return FunctionSource(
            name=node.name,
            qualname=definition.qualname,
            file=self.file,
            line=definition.first_line,
            end_line=definition.last_line,
            node=node,
            methods={"forward": node} if isinstance(node, ast.FunctionDef) else self._methods(definition),
            factories=tuple(function.name for function in definition.scope.functions),
            allow=allow,
            allow_without_reason=without_reason,
            call_sites=self._calls.get(node.name, ()) if is_class else (),
            instantiations=self._instantiations.get(node.name, ()) if is_class else (),
            docstring=ast.get_docstring(node) or "",
            inherits=is_class and self._inherits(definition),
            assigned=_assigned(node),
        )

    def _bases_with(self, known: Collection[str]) -> Bases:
        return Bases(self.tree, self.definitions, known) if known else self._bases

    @functools.cached_property
    def _comments(self) -> list[Comment]:
        return comments(self._text)

    @functools.cached_property
    def _calls(self) -> dict[str, tuple[CallSite, ...]]:
        return call_sites(self.tree, self._class_names)

    @functools.cached_property
    def _instantiations(self) -> dict[str, tuple[tuple[ast.Call, bool], ...]]:
        return instantiations(self.tree, self._class_names)

    @property
    def _class_names(self) -> set[str]:
        return {d.node.name for d in self.definitions if isinstance(d.node, ast.ClassDef)}

    def _methods(self, definition: Definition) -> dict[str, ast.FunctionDef]:
        methods: dict[str, ast.FunctionDef] = {}
        for base in reversed(self._line_of(definition)):
            methods |= {node.name: node for node in base.node.body if isinstance(node, ast.FunctionDef)}
        return methods

    def _inherits(self, definition: Definition) -> bool:
        return any(self._bases.of(base)[1] for base in self._line_of(definition))

    def _line_of(self, definition: Definition) -> list[Definition]:
        """Return the class and its base classes in this file, the nearest first."""
        line = [definition]
        for known in line:
            line += [base for base in self._bases.of(known)[0] if base not in line]
        return line


@functools.lru_cache(maxsize=256)
def source_file(text: str, file: str) -> SourceFile:
    """Parse a text as the content of `file`.

    Raises:
        TargetError: it is not valid Python.
    """
    return SourceFile(text, file)


def read(path: str | Path) -> str:
    """Return the text of a Python file, decoded as it declares.

    Raises:
        TargetError: it cannot be read, or not in that encoding.
    """
    try:
        with tokenize.open(path) as file:
            return file.read()
    except OSError as error:
        raise TargetError(f"cannot read {path}: {error.strerror or error}") from None
    except (SyntaxError, UnicodeDecodeError) as error:
        raise TargetError(f"{path} is not valid Python: {error}") from None


def _parse(text: str, file: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text, file)
    except SyntaxError as error:
        where = file if error.lineno is None else f"{file}:{error.lineno}"
        raise TargetError(f"{where} is not valid Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise TargetError(f"{file} is not valid Python: {error}") from None


def _assigned(node: ast.ClassDef | ast.FunctionDef) -> frozenset[str]:
    if isinstance(node, ast.FunctionDef):
        return frozenset()
    targets = [target for child in node.body if isinstance(child, ast.Assign) for target in child.targets]
    return frozenset(target.id for target in targets if isinstance(target, ast.Name))
