"""Sources of custom functions: their methods, allow comments and call sites.

They come from a file, which is not executed, or from a live object, defined in a file, a notebook cell or an `exec`.
"""

from __future__ import annotations

import ast
import functools
import inspect
import io
import linecache
import re
import sys
import tokenize
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

from pullback.check.find.syntax import Bases, CallSite, ScopedDefinition, call_sites, definitions, instantiations
from pullback.errors import TargetError

_ALLOW = re.compile(r"#\s*pullback:\s*allow\[(?P<names>[^\]]*)\]\s*[-:–—]*\s*(?P<reason>.*)")
_ALLOW_PREFIX = re.compile(r"#\s*pullback:\s*allow\b")
"""The beginning of an allow comment, also of one without brackets."""


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """The source of one `autograd.Function` class (or plain function, then only `forward` is set).

    Attributes:
        name: the class's name.
        qualname: name with the classes and functions around it, e.g. "make.<locals>.Op".
        file: path of the file.
        line, end_line: first (decorators included) and last line of the definition.
        node: the class (or function) itself.
        methods: its methods by name: "forward", "backward", "setup_context", "jvp", "vmap", …, with those it
            inherits from a class of the same file.
        factories: names of the enclosing functions, outermost first; empty at module level.
        allow: rule name or id -> reason, of each `# pullback: allow[NAME] reason` in it or directly above.
        allow_without_reason: lines of allow comments without a reason, which have no effect.
        call_sites: its calls in the module.
        instantiations: the calls that make an instance of it, and whether that is called immediately.
        docstring: docstring of the class.
        inherits: whether it also derives from a class of another file, whose methods are not in `methods`.
        assigned: names that its body assigns, e.g. "forward" in `forward = staticmethod(f)`.
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
        """Whether a comment allows the findings of a rule, by one of its names or ids."""
        return not self.allow.keys().isdisjoint(names)

    def defines(self, *names: str) -> bool:
        """Whether it has one of these methods, or may inherit one from a class of another file."""
        return self.inherits or any(name in self.methods or name in self.assigned for name in names)


class ParsedFile:
    """One parsed file: its classes and functions, and what is known of each.

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

    def describe(self, definition: ScopedDefinition) -> FunctionSource:
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

    def _methods(self, definition: ScopedDefinition) -> dict[str, ast.FunctionDef]:
        methods: dict[str, ast.FunctionDef] = {}
        for base in reversed(self._line_of(definition)):
            methods |= {node.name: node for node in base.node.body if isinstance(node, ast.FunctionDef)}
        return methods

    def _inherits(self, definition: ScopedDefinition) -> bool:
        return any(self._bases.of(base)[1] for base in self._line_of(definition))

    def _line_of(self, definition: ScopedDefinition) -> list[ScopedDefinition]:
        """Return the class and its base classes in this file, the nearest first."""
        line = [definition]
        for known in line:
            line += [base for base in self._bases.of(known)[0] if base not in line]
        return line


@functools.lru_cache(maxsize=256)
def source_file(text: str, file: str) -> ParsedFile:
    """Parse a text as the content of `file`.

    Raises:
        TargetError: it is not valid Python.
    """
    return ParsedFile(text, file)


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


def parse_file(path: str | Path, known: Collection[str] = ()) -> list[FunctionSource]:
    """Return the `autograd.Function` classes of a file, at any depth, in source order. Nothing is executed.

    Args:
        path: a Python file, in the encoding that it declares.
        known: names of Functions of other files of the same package, to be recognised as bases.

    Raises:
        TargetError: if the file cannot be read or is not valid Python.
    """
    return source_file(read(path), str(path)).functions(known)


def source_of(obj: Any) -> FunctionSource | None:
    """Return the source of a class or a callable, or `None` if it is not available.

    A class has its own definition; a module or another instance has that of its `forward` or `__call__`, a partial or a
    custom op that of its function; a lambda has `None`.
    """
    if isinstance(obj, type):
        return _source_of_class(obj)
    function = plain_function(obj)
    file = None if function is None else _file_of(function.__code__, function.__globals__)
    if function is None or file is None:
        return None
    code = function.__code__
    found = [d for d in file.definitions if isinstance(d.node, ast.FunctionDef) and d.node.name == code.co_name]
    return next((file.describe(d) for d in found if _starts_at(d, code)), None)


def plain_function(obj: Any) -> FunctionType | None:
    """Return the Python function that a call of `obj` runs; `None` if it is not written in Python."""
    from pullback import _torch

    if _torch.is_custom_op(obj):
        obj = _torch.custom_op_function(obj)
    while True:
        if isinstance(obj, functools.partial):
            obj = obj.func
        elif isinstance(obj, staticmethod | classmethod | MethodType):
            obj = obj.__func__
        elif hasattr(obj, "__wrapped__") and not isinstance(obj, type):
            obj = inspect.unwrap(obj)
        elif isinstance(obj, FunctionType):
            return obj
        elif isinstance(method := _call_method(obj), FunctionType):
            obj = method
        else:
            return None


def own_functions(cls: type) -> list[FunctionType]:
    """Return the Python functions that the body of a class defines or assigns, unwrapped."""
    values = [value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")]
    return [
        function
        for value in values
        if isinstance(value, FunctionType | staticmethod | classmethod)
        and (function := plain_function(value)) is not None
    ]


def _call_method(obj: Any) -> Any:
    import torch

    if isinstance(obj, type):
        return None
    return getattr(type(obj), "forward" if isinstance(obj, torch.nn.Module) else "__call__", None)


def _source_of_class(cls: type) -> FunctionSource | None:
    for file, line in _candidate_files(cls):
        classes = [d for d in file.definitions if isinstance(d.node, ast.ClassDef)]
        around = [d for d in classes if d.first_line <= line <= d.last_line] if line else classes
        namesakes = [d for d in around if d.qualname == cls.__qualname__]
        if line and not namesakes:  # one that was pickled by value, or whose decorator renames it
            namesakes = [d for d in around if d.node.name == cls.__name__]
        if namesakes:
            return file.describe(namesakes[-1])
    return None


def _candidate_files(cls: type) -> Iterator[tuple[ParsedFile, int]]:
    """Yield files that may define the class, and a line inside it; 0 if the line is unknown."""
    for function in own_functions(cls):
        if (file := _file_of(function.__code__, function.__globals__)) is not None:
            yield file, function.__code__.co_firstlineno
    module = sys.modules.get(cls.__module__)
    name = getattr(module, "__file__", None)
    if module is not None and name is not None and (file := _file(name, vars(module))) is not None:
        yield file, 0


def _starts_at(definition: ScopedDefinition, code: CodeType) -> bool:
    return code.co_firstlineno in (definition.first_line, definition.node.lineno)


def _file_of(code: CodeType, namespace: dict[str, Any]) -> ParsedFile | None:
    return _file(code.co_filename, namespace)


def _file(name: str, namespace: dict[str, Any]) -> ParsedFile | None:
    linecache.checkcache(name)
    text = "".join(linecache.getlines(name, namespace))
    try:
        return source_file(text, name) if text else None
    except TargetError:
        return None


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


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment: its line, its text with the `#`, and whether nothing else is on the line."""

    line: int
    text: str
    alone: bool


def comments(text: str) -> list[Comment]:
    """Return the comments of a source text that parses."""
    lines = text.split("\n")
    return [
        Comment(line, token.string, alone=not lines[line - 1][:column].strip())
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
        for line, column in [token.start]
    ]


def allowed(found: Sequence[Comment], first: int, last: int) -> tuple[dict[str, str], tuple[int, ...]]:
    """Return the rules allowed by the comments on lines `first` to `last` and directly above.

    Returns:
        Rule name or id -> reason, and the lines of the allow comments without brackets or without a reason.
    """
    allow: dict[str, str] = {}
    without_reason: list[int] = []
    for comment in _within(found, first, last):
        if (match := _ALLOW.match(comment.text)) is None:
            without_reason += [comment.line] * bool(_ALLOW_PREFIX.match(comment.text))
            continue
        names = [name.strip() for name in match["names"].split(",") if name.strip()]
        reason = match["reason"].strip()
        if names and reason:
            allow.update(dict.fromkeys(names, reason))
        else:
            without_reason.append(comment.line)
    return allow, tuple(without_reason)


def _within(found: Sequence[Comment], first: int, last: int) -> Iterator[Comment]:
    alone = {comment.line for comment in found if comment.alone}
    while first - 1 in alone:
        first -= 1
    return (comment for comment in found if first <= comment.line <= last)
