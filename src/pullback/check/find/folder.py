"""A folder as a target: the packages and the files in it that hold custom functions. Nothing is imported."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from pullback.check.find.packages import NOT_AUDITED
from pullback.check.find.parsed import read
from pullback.check.find.places import home_of_file
from pullback.check.find.target import is_module, package_of, written_as_path
from pullback.errors import TargetError

_OP = re.compile(r"^\s*@.*\b(custom_op|triton_op|pullback\.function)\b|= pullback\.function\(", re.MULTILINE)
_MAY_HOLD = re.compile(r"\bFunction\b|custom_op|triton_op|\bpullback\b")
_LEFT_OUT = frozenset({"node_modules", "site-packages", "build", "dist"})


def expanded(targets: Sequence[str], exclude: Collection[str] = ()) -> list[str]:
    """Return targets with what they hold in place of folders that are no packages.

    Left out are tests, hidden folders, environments, what git ignores, and what matches a pattern.

    Args:
        targets: as on the command line.
        exclude: patterns of paths, relative to the folder, as in `build/*`.

    Raises:
        TargetError: if a folder holds no custom function, or a file that seems to hold some is not valid Python.
    """
    return [one for target in targets for one in (_held(Path(target), exclude) if _is_plain(target) else [target])]


def _is_plain(target: str) -> bool:
    path = Path(target)  # of the empty string, this would be the current folder
    is_package = (path / "__init__.py").exists()
    return bool(target) and path.is_dir() and not is_package and (written_as_path(target) or not is_module(target))


def _held(folder: Path, exclude: Collection[str]) -> list[str]:
    files = list(_files(folder))
    chosen = [f for f in files if not any(fnmatch(str(f.relative_to(folder)), pattern) for pattern in exclude)]
    left_out = set(files) - set(chosen)
    held = [file for file in chosen if _holds_some(file)]
    if not held:
        raise TargetError(f"no custom function in the {len(chosen)} Python files of {folder}")
    targets = dict.fromkeys(_package(file, folder, left_out) or file for file in held)
    return [str(target) for target in targets]


def _package(file: Path, folder: Path, left_out: Collection[Path]) -> Path | None:
    """Return the outermost package around a file, in the folder, unless a part of it is left out."""
    around, name = package_of(file)
    package = around / name.partition(".")[0]
    if not (package / "__init__.py").exists() or not package.is_relative_to(folder.resolve()):
        return None
    shown = folder / package.relative_to(folder.resolve())
    return None if any(other.is_relative_to(shown) for other in left_out) else shown


def _holds_some(file: Path) -> bool:
    """Whether the source of a file shows a custom function.

    Raises:
        TargetError: if it is not valid Python.
    """
    text = read(file)
    if not _MAY_HOLD.search(text):
        return False
    try:
        sources = home_of_file(file, text).sources()
    except TargetError as error:
        raise TargetError(f"{error}; leave it out with --exclude") from None
    whole = [s for s in sources if s.defines("forward") and s.defines("backward", "vjp", "jvp")]
    return bool(whole or _OP.search(text))


def _files(folder: Path) -> Iterator[Path]:
    """Yield the Python files of a folder that are not tests, in the order of their paths."""
    for path in sorted(_not_ignored(folder)):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") or part in _LEFT_OUT for part in parts)
        if not hidden and not any(NOT_AUDITED.fullmatch(part.removesuffix(".py")) for part in parts) and path.is_file():
            yield path


def _not_ignored(folder: Path) -> Iterator[Path]:
    """Yield Python files: those that git does not ignore, where it knows the folder."""
    command = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.py"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        listed = None
    if listed is not None and listed.returncode == 0:
        yield from (folder / name for name in listed.stdout.split("\0") if name)
        return
    for here, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not (Path(here) / name / "pyvenv.cfg").exists()]
        yield from (Path(here) / name for name in files if name.endswith(".py"))
