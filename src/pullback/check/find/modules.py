"""Modules of audited code: their files as shown to the user, their imports in reproductions, and their submodules.

Nothing is imported here.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from pullback.check.find.source import FunctionSource, parse_file, read, source_file
from pullback.check.find.syntax import TORCH_NAMES
from pullback.check.find.target import locate, own_path, package_of
from pullback.errors import TargetError
from pullback.report.model import Location

IN_PROGRAM = "# in the program or notebook that defines it"
"""The condition under which a reproduction that calls a function of the main program runs."""
PROGRAMS = re.compile(r"__main__|setup")
"""Modules that run a package."""
TESTS = re.compile(r"conftest|tests?|test_.*|.*_tests?")
"""Modules and folders that test a package."""
_SIGNS = frozenset({*TORCH_NAMES, "custom_op", "triton_op", "import pullback", "from pullback"})
"""Words of which a module that defines a custom function has one, unless it names a Function of its package."""
_CLASS = re.compile(r"^[ \t]*class[ \t]+\w+[ \t]*\(([^)]*)\)", re.MULTILINE)
_ASSIGNED = re.compile(r"^[ \t]*\w+ = ([\w.]+)$", re.MULTILINE)
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Home:
    """One module of the audited code.

    Attributes:
        name: name of the module, as in `sys.modules`.
        file: its source; `None` where there is none (a notebook, a compiled module).
        shown: `file` in the form that the user would write.
        module: the module; `None` if it could not be imported.
        why: why it could not, or not to the end if there is a module; empty otherwise.
        loose: whether it is a file outside of any package, run by its path rather than imported.
        setup: lines of Python that a reproduction needs before it can import or run it.
        known: names of the Functions of its package, to be recognised as bases.
        absent: its missing imports, which stand-ins replace.
    """

    name: str
    file: Path | None
    shown: str
    module: ModuleType | None = None
    why: str = ""
    loose: bool = False
    setup: str = ""
    known: frozenset[str] = frozenset()
    absent: tuple[str, ...] = ()

    def sources(self) -> list[FunctionSource]:
        """Return the Functions that the file defines, none if it is not valid Python. Nothing is executed."""
        try:
            return [] if self.file is None else parse_file(self.file, self.known)
        except TargetError:
            return []

    def location(self, file: str | None, line: int | None) -> Location:
        """Return the location of a line of this or another file."""
        if file is None or (self.file is not None and os.path.realpath(file) == os.path.realpath(self.file)):
            return Location(self.shown, line)
        return Location(shown_path(file), line)

    def load(self, expression: str | None, otherwise: str, location: Location) -> str:
        """Return lines of Python that bind `fn` to an expression in the module's names, e.g. "Op.apply".

        Without an expression, they are a comment that names `otherwise`.
        """
        if expression is None or self.module is None:
            return f"# fn = {expression or otherwise}" + (f"  (defined at {location})" if location.file else "")
        if self.name == "__main__":
            return f"fn = {expression}  {IN_PROGRAM}"
        return f"{self.setup}{self._bind('fn', expression)}"

    def load_unnamed(self, found: str, making: str = "", before: str = "") -> str:
        """Return lines that bind `fn` to an object that the import of the module creates, but that has no name there.

        Args:
            found: its expression, in PyTorch's names and those of `before`.
            making: an expression in the module's names to be evaluated first.
            before: lines that `found` needs.
        """
        if making:
            made = self._bind("made", making)
        elif self.loose and self.why:
            made = self._run_in_part()
        elif self.loose:
            made = f"import runpy\nmade = runpy.run_path({json.dumps(self.shown)})"
        else:
            made = f"import importlib\nmade = importlib.import_module({json.dumps(self.name)})"
        return f"{self.setup}import torch\n{made}\n{before}fn = {found}"

    def _bind(self, variable: str, expression: str) -> str:
        name = re.split(r"\W", expression, maxsplit=1)[0]
        if not self.loose:
            return f"from {self.name} import {name}\n{variable} = {expression}"
        rest = expression.removeprefix(name)
        if self.why:
            return f"{self._run_in_part()}\n{variable} = names[{json.dumps(name)}]{rest}"
        return f"import runpy\n{variable} = runpy.run_path({json.dumps(self.shown)})[{json.dumps(name)}]{rest}"

    def _run_in_part(self) -> str:
        """Return lines that bind `names` to the names that a file defines before it fails."""
        shown = json.dumps(self.shown)
        return (
            f"import pathlib\nnames = {{'__name__': {json.dumps(self.name)}, '__file__': {shown}}}\n"
            f"try:\n    exec(compile(pathlib.Path({shown}).read_text(), {shown}, 'exec'), names)\n"
            "except BaseException as error:\n    print('it ran up to here:', repr(error))"
        )


def shown_path(file: str) -> str:
    """Return a path in the form that the user would write.

    It is relative to the folder of installed packages, else to the current folder, else to the entry of `sys.path`
    above it, else absolute.
    """
    path = Path(file).resolve()
    if not path.exists():
        return file
    entries = [entry for entry in own_path() if path.is_relative_to(entry)]
    installed = [entry for entry in entries if any(entry.glob("*.dist-info"))]
    cwd = [Path.cwd()] if path.is_relative_to(Path.cwd()) else []
    for candidates in (installed, cwd, entries):
        if candidates:
            return str(path.relative_to(max(candidates, key=lambda entry: len(entry.parts))))
    return file


def shown_as_given(path: Path) -> str:
    """Return the path of a file that the user named: relative to the current folder, or else as given."""
    resolved = path.resolve()
    return str(resolved.relative_to(Path.cwd())) if resolved.is_relative_to(Path.cwd()) else str(path)


def home_of_file(path: Path, text: str) -> Home:
    """Return the module of a file, not imported yet; `text` is its content.

    Raises:
        TargetError: it is not valid Python.
    """
    folder, name = package_of(path)
    loose = folder == path.resolve().parent and path.name != "__init__.py"
    needed = not loose or _imports_sibling(source_file(text, str(path)).tree, path)
    return Home(name, path.resolve(), shown_as_given(path), loose=loose, setup=_path_setup(folder) if needed else "")


def home_of_module(module: ModuleType) -> Home:
    """Return an imported module."""
    file = getattr(module, "__file__", None)
    path = Path(file) if file is not None and file.endswith(".py") else None
    return Home(module.__name__, path, shown_path(file) if file else module.__name__, module)


def _imports_sibling(tree: ast.Module, path: Path) -> bool:
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported.add(node.module.partition(".")[0])
    folder = path.resolve().parent
    return any((folder / f"{name}.py").exists() or (folder / name).is_dir() for name in imported)


def _path_setup(folder: Path) -> str:
    """Return the lines that put a folder on `sys.path`; none if Python puts it there when started here."""
    if folder in (Path.cwd(), *own_path()):
        return ""
    return f"import sys\nsys.path.insert(0, {json.dumps(shown_as_given(folder))})\n"


def with_submodules(root: Home) -> list[Home]:
    """Return a module and, if it is a package, those of its submodules that may hold custom functions.

    They are not imported. Each knows the names of the Functions of the whole package.
    """
    folders = _folders(root)
    if root.loose or not (folders or root.module is None):
        return [root]
    known = _function_names(root)
    homes = [_submodule(root, name, file) for name, file in _walk(root.name, folders)]
    signs = _mentions(_SIGNS | known)
    chosen = [home for home in homes if home.file is not None and signs.search(_text(home.file))]
    return [replace(home, known=known) for home in (root, *chosen)]


def in_package(module: str, package: str) -> bool:
    """Whether a module is `package` or inside it."""
    return module == package or module.startswith(f"{package}.")


def _function_names(root: Home) -> frozenset[str]:
    """Return the names of all Functions of the outermost package around a module, from its source."""
    texts = {file: _text(file) for _, file in _walk(*_outermost(root))}
    bases = {file: _bases_in(text) for file, text in texts.items()}
    names: frozenset[str] = frozenset()
    while True:
        derived = [file for file in texts if not bases[file].isdisjoint(TORCH_NAMES | names)]
        found = frozenset[str]().union(*(_functions_in(texts[file], file, names) for file in derived))
        if found == names:
            return names
        names = found


def _outermost(root: Home) -> tuple[str, Sequence[str]]:
    """Return the name and the folders of the outermost package around a module."""
    if root.file is None:
        return root.name, _folders(root)
    folder, name = package_of(root.file)
    top = name.partition(".")[0]
    return top, [str(folder / top)]


def _submodule(root: Home, name: str, file: Path) -> Home:
    shown = shown_path(str(file))
    if root.file is not None and file.resolve().is_relative_to(root.file.resolve().parent):
        shown = str(Path(root.shown).parent / file.resolve().relative_to(root.file.resolve().parent))
    return Home(name, file, shown, setup=root.setup)


def _folders(root: Home) -> list[str]:
    """Return the folders of a package; none for a plain module."""
    if root.module is not None:
        return list(getattr(root.module, "__path__", ()))
    if root.file is not None:
        return [str(root.file.parent)] if root.file.name == "__init__.py" else []
    spec = locate(root.name)
    return [] if spec is None else list(spec.submodule_search_locations or ())


def _walk(package: str, folders: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yield the name and file of each Python submodule, at any depth."""
    for info in iter_modules(folders):
        if PROGRAMS.fullmatch(info.name) or TESTS.fullmatch(info.name):
            continue
        spec = PathFinder.find_spec(f"{package}.{info.name}", folders)
        if spec is None:
            continue
        if spec.origin is not None and spec.origin.endswith(".py"):
            yield spec.name, Path(spec.origin)
        if info.ispkg:
            yield from _walk(spec.name, list(spec.submodule_search_locations or ()))


def _mentions(words: frozenset[str]) -> re.Pattern[str]:
    return re.compile(r"\b(?:" + "|".join(map(re.escape, sorted(words))) + r")\b")


def _bases_in(text: str) -> frozenset[str]:
    """Return the words in a text that are bases of a class or bound to another name, by a quick scan."""
    renamed = [name for name in TORCH_NAMES if f"{name} as " in text]
    words = " ".join([*_CLASS.findall(text), *_ASSIGNED.findall(text), *renamed])
    return frozenset(_WORD.findall(words))


def _functions_in(text: str, file: Path, known: frozenset[str]) -> set[str]:
    try:
        return source_file(text, str(file)).function_names(known)
    except TargetError:
        return set()


def _text(file: Path) -> str:
    """Return the text of a file; empty if it is not Python."""
    try:
        return read(file)
    except TargetError:
        return ""
