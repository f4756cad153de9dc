"""Imports the code to audit, which executes it. A failing import is reported, never raised."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import walk_tb
from types import ModuleType

from pullback.check.find.kernels import enter_for_target
from pullback.check.find.modules import Home, home_of_file, shown_path, with_submodules
from pullback.check.find.source import read
from pullback.check.find.stand_ins import bare_package, import_without
from pullback.check.find.target import Target, add_path, locate, package_of, similar_files
from pullback.errors import TargetError

_FAILED = "could not be imported: "
_in_part: dict[str, Home] = {}
"""Files that this process has run in part, by their path."""


def import_root(target: Target) -> Home:
    """Import the file, module or package that a target names. Its Triton kernels are interpreted without a GPU.

    Raises:
        TargetError: there is no such module, or the file is not valid Python.
    """
    enter_for_target(target)
    return _import_file(target.path) if target.path is not None else imported(_located(target.module))


def unimported_root(target: Target, why: str) -> Home:
    """Return the same without importing it, for the reason `why`.

    Raises:
        TargetError: there is no such module, or the file is not valid Python.
    """
    if target.path is not None:
        return replace(home_of_file(target.path, read(target.path)), why=why)
    return replace(_located(target.module), why=why)


def import_all(root: Home) -> list[Home]:
    """Return a module and, if it is a package, those submodules that may hold custom functions, imported.

    If the package itself is not imported, neither are they.
    """
    root, *submodules = with_submodules(root)
    if root.module is None:
        return [root, *(replace(home, why=root.why) for home in submodules)]
    return [root, *map(imported, submodules)]


def guarded(action: Callable[[], object]) -> str:
    """Run foreign code; return its exception as "Type: message" on one line, or "".

    `sys.exit` counts as an exception; only Ctrl-C is not caught.
    """
    try:
        action()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return _in_a_line(error)
    return ""


def _in_a_line(error: BaseException) -> str:
    message = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {message[:200]}".rstrip(": ")


@contextlib.contextmanager
def _importing(program: str) -> Iterator[None]:
    """Import without writing byte code, and with our command line hidden from the module."""
    before = sys.dont_write_bytecode, sys.argv
    sys.dont_write_bytecode, sys.argv = True, [program]
    try:
        yield
    finally:
        sys.dont_write_bytecode, sys.argv = before


def imported(home: Home) -> Home:
    """Return a module imported by its name, or the reason why it cannot be.

    Stand-ins replace its missing imports. If an enclosing package fails all the same, the module is imported without
    it.
    """
    return _with_stand_ins(home, lambda: importlib.import_module(home.name))


def _with_stand_ins(home: Home, do: Callable[[], ModuleType]) -> Home:
    with _importing(home.shown):
        module, error, absent = import_without(do, home.name)
        if module is None and _is_in_package(home) and (left_out := _leave_inits_out(home)):
            why = f" ({_in_a_line(error)})" if error is not None else ""
            module, _, absent = import_without(do, home.name)
            absent = (*left_out[:-1], f"{left_out[-1]}{why}", *absent)
    if module is None:
        assert error is not None
        return replace(home, why=f"{_FAILED}{_in_a_line(error)}", absent=absent)
    return replace(home, module=module, absent=absent)


def _is_in_package(home: Home) -> bool:
    return home.file is not None and not home.loose and package_of(home.file)[1] == home.name


def _leave_inits_out(home: Home) -> list[str]:
    """Put packages without their `__init__` in place of those around a module, or of the package that it is.

    Returns the `__init__`s that are not run.
    """
    assert home.file is not None
    folder, name = package_of(home.file)
    parts = name.split(".") if home.file.name == "__init__.py" else name.split(".")[:-1]
    left_out = []
    for count in range(1, len(parts) + 1):
        package = ".".join(parts[:count])
        if package not in sys.modules:
            bare_package(package, folder.joinpath(*parts[:count]))
            left_out.append(f"{package}.__init__")
    return left_out


def _located(name: str) -> Home:
    spec = locate(name)
    if spec is None:
        suggestion = similar_files(Path(*name.split("."))) or "; give a file (a/b.py) or an installed module"
        raise TargetError(f"no module named {name!r}{suggestion}")
    if spec.origin is None or not spec.origin.endswith(".py"):
        return Home(name, None, name)
    return Home(name, Path(spec.origin), shown_path(spec.origin))


def _import_file(path: Path) -> Home:
    home = home_of_file(path, read(path))
    folder, _ = package_of(path)
    add_path(folder)
    if home.loose:
        return _import_loose(home, path)
    home = imported(home)
    found = getattr(home.module, "__file__", None)
    if found is not None and os.path.realpath(found) != os.path.realpath(path):
        raise TargetError(
            f"{path} is the module {home.name}, but that is already imported from {found}: "
            f"audit {home.name} instead, or uninstall the other copy"
        )
    return home


def _import_loose(home: Home, path: Path) -> Home:
    """Import a file that is in no package, under its stem if that is free, as its neighbours would."""
    real = os.path.realpath(path)
    known = sys.modules.get(home.name)
    name = home.name
    if known is not None or name in sys.stdlib_module_names:
        if os.path.realpath(getattr(known, "__file__", None) or "") == real:
            return _in_part.get(real) or replace(home, module=known)
        name = f"{name}_{zlib.crc32(real.encode()):08x}"
        if name in sys.modules:
            return _in_part.get(real) or replace(home, name=name, module=sys.modules[name])
    loader = SourceFileLoader(name, real)
    spec = spec_from_file_location(name, real, loader=loader)
    assert spec is not None  # the loader is given

    begun: list[tuple[ModuleType, int]] = []

    def load() -> ModuleType:
        module = sys.modules[name] = module_from_spec(spec)
        try:
            loader.exec_module(module)
        except BaseException as error:
            del sys.modules[name]
            begun.append((module, _line_of(error, real)))
            raise
        return module

    found = _with_stand_ins(replace(home, name=name), load)
    return found if found.module is not None else _as_far_as_it_ran(found, real, *begun[-1])


def _line_of(error: BaseException, file: str) -> int:
    """Return the line of a file that was running when an error was raised; 0 if it did not run."""
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    return lines[0] if lines else 0


def _as_far_as_it_ran(home: Home, file: str, module: ModuleType, line: int) -> Home:
    """Return a file whose top level fails, with what it defined before: a script that goes on to read its data."""
    if not line:
        return home
    sys.modules[home.name] = module
    rest = f"{home.shown} from line {line} on ({home.why.removeprefix(_FAILED)})"
    _in_part[file] = replace(home, module=module, absent=(*home.absent, rest))
    return _in_part[file]
