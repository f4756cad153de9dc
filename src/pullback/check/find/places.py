"""Modules of audited code: how to show their files to the user, and how a reproduction imports them."""

from __future__ import annotations

import ast
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from pullback.check.find.parsed import source_file
from pullback.check.find.source import FunctionSource, parse_file
from pullback.check.find.target import own_path, package_of
from pullback.errors import TargetError
from pullback.report.model import Location

IN_PROGRAM = "# in the program or notebook that defines it"
"""The only condition under which a reproduction runs that calls a function of the main program."""


@dataclass(frozen=True, slots=True)
class Home:
    """One module of the audited code.

    Attributes:
        name: of the module, as in `sys.modules`.
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
        """Return the location of a line, in this file or any other."""
        if file is None or (self.file is not None and os.path.realpath(file) == os.path.realpath(self.file)):
            return Location(self.shown, line)
        return Location(shown_path(file), line)

    def load(self, expression: str | None, otherwise: str, location: Location) -> str:
        """Return lines of Python that bind `fn` to an expression in the module's names, e.g. "Op.apply".

        Where there is none it is a comment that names `otherwise`.
        """
        if expression is None or self.module is None:
            return f"# fn = {expression or otherwise}" + (f"  (defined at {location})" if location.file else "")
        if self.name == "__main__":
            return f"fn = {expression}  {IN_PROGRAM}"
        return f"{self.setup}{self._bind('fn', expression)}"

    def load_unnamed(self, found: str, making: str = "", before: str = "") -> str:
        """Return lines that bind `fn` to an object that no name of the module refers to, but that its import creates.

        Args:
            found: the expression for it, in PyTorch's names and those of `before`.
            making: an expression in the module's names that has to be evaluated first.
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
        """Return lines that bind `names` to those that a file defines before it fails."""
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
    """Return the place of a file, not imported yet; `text` is its content.

    Raises:
        TargetError: it is not valid Python.
    """
    folder, name = package_of(path)
    loose = folder == path.resolve().parent and path.name != "__init__.py"
    needed = not loose or _imports_sibling(source_file(text, str(path)).tree, path)
    return Home(name, path.resolve(), shown_as_given(path), loose=loose, setup=_path_setup(folder) if needed else "")


def home_of_module(module: ModuleType) -> Home:
    """Return the place of a module that is imported."""
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
    """Return the lines that put a folder on `sys.path`; none if Python, started here, has it there."""
    if folder in (Path.cwd(), *own_path()):
        return ""
    return f"import sys\nsys.path.insert(0, {json.dumps(shown_as_given(folder))})\n"
