"""Looks into a package without importing it: which of its modules may hold custom functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path
from pkgutil import iter_modules

from pullback.check.find.bases import TORCH_NAMES
from pullback.check.find.parsed import read, source_file
from pullback.check.find.places import Home, shown_path
from pullback.check.find.target import locate, package_of
from pullback.errors import TargetError

PROGRAMS = re.compile(r"__main__|setup")
"""Modules that run a package."""

TESTS = re.compile(r"conftest|tests?|test_.*|.*_tests?")
"""Modules and folders that test a package."""

_TELLING = frozenset({*TORCH_NAMES, "custom_op", "triton_op", "import pullback", "from pullback"})
"""A module that defines a custom function has one of these words, or a Function of its package."""

_CLASS = re.compile(r"^[ \t]*class[ \t]+\w+[ \t]*\(([^)]*)\)", re.MULTILINE)
_ASSIGNED = re.compile(r"^[ \t]*\w+ = ([\w.]+)$", re.MULTILINE)
_WORD = re.compile(r"\w+")


def with_submodules(root: Home) -> list[Home]:
    """Return a module and, if it is a package, those of its submodules that may hold custom functions.

    They are not imported. Each has the names of the Functions of the whole package.
    """
    folders = _folders(root)
    if root.loose or not (folders or root.module is None):
        return [root]
    known = _function_names(root)
    homes = [_submodule(root, name, file) for name, file in _walk(root.name, folders)]
    telling = _mentions(_TELLING | known)
    chosen = [home for home in homes if home.file is not None and telling.search(_text(home.file))]
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
        telling = [file for file in texts if not bases[file].isdisjoint(TORCH_NAMES | names)]
        found = frozenset[str]().union(*(_functions_in(texts[file], file, names) for file in telling))
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
    """Return the words among the bases of a class, or bound to another name, in a text, by a quick scan."""
    renamed = [name for name in TORCH_NAMES if f"{name} as " in text]
    words = " ".join([*_CLASS.findall(text), *_ASSIGNED.findall(text), *renamed])
    return frozenset(_WORD.findall(words))


def _functions_in(text: str, file: Path, known: frozenset[str]) -> set[str]:
    try:
        return source_file(text, str(file)).function_names(known)
    except TargetError:
        return set()


def _text(file: Path) -> str:
    """Return the text of a file; none if it is not Python."""
    try:
        return read(file)
    except TargetError:
        return ""
