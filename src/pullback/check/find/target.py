"""Parses the user's target: a file, a module or a package, each with or without `:name`."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from pullback.check.find.source import read, source_file
from pullback.errors import TargetError

_ADDED: set[str] = set()


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed target string.

    Attributes:
        spec: the string.
        path: the file, if a file was named; a folder with an `__init__.py` means that file.
        module: the module, if a module was named.
        name: the part after the colon; empty for everything in it.
    """

    spec: str
    path: Path | None
    module: str
    name: str

    @property
    def where(self) -> str:
        """The file or module as the user wrote it."""
        return self.module if self.path is None else str(self.path)


def parse_target(spec: str) -> Target:
    """Take a target string apart; a file must exist, a module need not.

    Raises:
        TargetError: no such file, a folder that is not a package, or not a module's name.
    """
    place, name = _split(spec)
    path = Path(place)
    if not place:
        raise TargetError(f"{spec!r} names nothing to audit: give a file or a module, as in ops.py or package.ops")
    if path.is_dir() and (written_as_path(place) or not is_module(place)):
        return Target(spec, _init_of(path), "", name)
    if path.is_dir() and (path / "__init__.py").exists():
        return Target(spec, path / "__init__.py", "", name)
    if path.exists() and not path.is_dir():
        return Target(spec, _python(path), "", name)
    if written_as_path(place):
        folder = "" if path.parent.is_dir() else f" (nor is there a folder {path.parent})"
        raise TargetError(f"no such file: {place}{folder}{similar_files(path)}")
    if not all(part.isidentifier() for part in place.split(".")):
        raise TargetError(f"no such file or module: {place}{similar_files(path)}")
    return Target(spec, None, place, name)


def locate(module: str) -> ModuleSpec | None:
    """Find a module without executing it or the packages around it; `None` if there is none.

    The current folder counts, as it does for `python -m`.
    """
    add_path(Path.cwd())
    head, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(head)
        for part in rest:
            if spec is None or spec.submodule_search_locations is None:
                return None
            spec = PathFinder.find_spec(f"{spec.name}.{part}", list(spec.submodule_search_locations))
    except (ImportError, ValueError, AttributeError):
        return None
    return spec


def function_names(spec: str) -> list[str]:
    """Return the public custom functions of a target, then its other top-level functions, from its source alone.

    Raises:
        TargetError: if there is no such target, or it is not valid Python.
    """
    target = parse_target(spec)
    found = None if target.path else locate(target.module)
    file = target.path or (found and found.origin)
    if not file:
        return []
    source = source_file(read(file), str(file))
    classes = [function.qualname for function in source.functions()]
    functions = [n.name for n in source.tree.body if isinstance(n, ast.FunctionDef) and not _is_kernel(n)]
    return [name for name in classes + functions if "<locals>" not in name and not name.startswith("_")]


def _is_kernel(function: ast.FunctionDef) -> bool:
    """Whether a function is decorated with `triton.jit`."""
    called = (d.func if isinstance(d, ast.Call) else d for d in function.decorator_list)
    return any(ast.unparse(decorator) in ("jit", "triton.jit") for decorator in called)


def add_path(folder: Path) -> None:
    """Put a folder at the head of `sys.path`, unless it is on it."""
    known = {os.path.realpath(entry) for entry in sys.path}
    if os.path.realpath(folder) not in known:
        sys.path.insert(0, str(folder.resolve()))
        _ADDED.add(str(folder.resolve()))


def own_path() -> list[Path]:
    """Return the folders of `sys.path` that were there without `add_path`."""
    return [Path(entry).resolve() for entry in sys.path if entry not in _ADDED]


def package_of(path: Path) -> tuple[Path, str]:
    """Return the folder to import a file from, and its module's name there.

    For a file in the folder of an `__init__.py` this is the folder above the outermost package; else its own.
    """
    path = path.resolve()
    if not path.stem.isidentifier():
        return path.parent, path.stem
    parts = [] if path.name == "__init__.py" else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").exists() and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts) or path.stem


def similar(name: str, names: Iterable[str], few: int = 8) -> str:
    """Return a clause that suggests the names nearest to `name`, or lists a few; empty if there is none."""
    known = sorted(set(names))
    lowered = {known_name.lower(): known_name for known_name in reversed(known)}
    if close := difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.7):
        return f"; did you mean {' or '.join(lowered[match] for match in close)}?"
    return f"; there {'is' if len(known) == 1 else 'are'} {_list(known, few)}" if known else ""


def similar_files(path: Path) -> str:
    """Return a clause that suggests the Python file of the same folder nearest by name; or nothing."""
    files = {file.name: file for file in path.parent.glob("*.py")}
    close = difflib.get_close_matches(path.with_suffix(".py").name, files, n=1, cutoff=0.75)
    return f"; did you mean {files[close[0]]}?" if close else ""


def _list(names: Sequence[str], few: int) -> str:
    more = len(names) - few
    return ", ".join(names[:few]) + (f" and {more} more" if more > 0 else "")


def _split(spec: str) -> tuple[str, str]:
    """Cut at the first colon that is not a Windows drive's; "file.py::name" is taken as well."""
    if Path(spec).exists():
        return spec, ""
    drive, rest = os.path.splitdrive(spec)
    place, _, name = rest.partition(":")
    return drive + place, name.removeprefix(":")


def written_as_path(place: str) -> bool:
    """Whether a word can only be a path."""
    return place.endswith((".py", ".ipynb")) or "/" in place or os.sep in place or place in (".", "..")


def is_module(place: str) -> bool:
    """Whether a word is the name of an existing module, rather than a mere folder."""
    spec = locate(place)
    return spec is not None and spec.origin is not None


def _init_of(folder: Path) -> Path:
    init = folder / "__init__.py"
    if init.exists():
        return init
    files = sorted(file.name for file in folder.glob("*.py"))
    inside = f" ({_list(files, 4)})" if files else ""
    raise TargetError(f"{folder} is a folder: name a Python file in it{inside}, or an importable package")


def _python(path: Path) -> Path:
    if path.suffix == ".ipynb":
        raise TargetError(
            f"{path} is a notebook: call pullback.check(NAME) in a cell of it, or give the code as a .py file"
        )
    return path
