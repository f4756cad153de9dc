"""A folder as a target: the packages and the files in it that hold custom functions. Nothing is imported."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from pullback.check.find.modules import PROGRAMS, TESTS, home_of_file
from pullback.check.find.source import read
from pullback.check.find.target import is_module, package_of, written_as_path
from pullback.errors import TargetError

_OP = re.compile(r"^\s*@.*\b(custom_op|triton_op|pullback\.function)\b|= pullback\.function\(", re.MULTILINE)
_MAY_HOLD = re.compile(r"\bFunction\b|custom_op|triton_op|\bpullback\b")
_TEST_FOLDER = re.compile(r"tests?|.*_tests?")
_LEFT_OUT = frozenset({"node_modules", "site-packages", "build", "dist"})


def expanded(
    targets: Sequence[str], exclude: Collection[str] = (), note: Callable[[str], None] = lambda text: None
) -> list[str]:
    """Return targets with each folder that is not a package replaced by its files and packages.

    Hidden folders, environments, files that git ignores and files that match a pattern are left out; so are tests,
    unless the folder itself is called `tests`.

    Args:
        targets: as on the command line.
        exclude: patterns of paths, relative to the folder, as in `build/*`.
        note: called with the name of each file that is left out since it is not valid Python.

    Raises:
        TargetError: if a folder holds no custom function.
    """
    return [
        one for target in targets for one in (_held(Path(target), exclude, note) if _is_plain(target) else [target])
    ]


def _is_plain(target: str) -> bool:
    path = Path(target)
    if not target or not path.is_dir():  # Path("") is the current folder
        return False
    if _is_of_tests(path):  # a package, too, whose own search would leave out tests
        return True
    return not (path / "__init__.py").exists() and (written_as_path(target) or not is_module(target))


def _held(folder: Path, exclude: Collection[str], note: Callable[[str], None]) -> list[str]:
    everything, is_of_tests = list(_files(folder)), _is_of_tests(folder)
    files = [f for f in everything if is_of_tests or not _is_test(f.relative_to(folder))]
    chosen = [f for f in files if not any(_matches(f.relative_to(folder), pattern) for pattern in exclude)]
    left_out = set(files) - set(chosen)
    held = [file for file in chosen if _holds_some(file, note)]
    if not held:
        n = len(chosen)
        said = _skipped(set(everything) - set(files))
        if files and not chosen:
            raise TargetError(f"--exclude leaves out all {len(files)} of the Python files of {folder}{said}")
        what = f"no custom function in the {n} Python file{'s' * (n != 1)}" if n else "no Python files"
        raise TargetError(f"{what} {'of' if n else 'in'} {folder}{said}")
    if is_of_tests:  # a package in it would leave out its tests
        return [str(file) for file in held]
    targets = dict.fromkeys(_package(file, folder, left_out) or file for file in held)
    return [str(target) for target in targets]


def _matches(path: Path, pattern: str) -> bool:
    """Whether a pattern matches a path, or a folder that it is in."""
    return any(fnmatch(str(part), pattern.rstrip("/")) for part in (path, *path.parents[:-1]))


def _is_of_tests(folder: Path) -> bool:
    return _TEST_FOLDER.fullmatch(folder.resolve().name) is not None


def _is_test(file: Path) -> bool:
    return any(TESTS.fullmatch(part.removesuffix(".py")) for part in file.parts)


def _skipped(tests: Collection[Path]) -> str:
    """Return a clause about skipped tests; empty if there were none."""
    if not tests:
        return ""
    if len(tests) == 1:
        return f"; 1 test file was skipped ({next(iter(tests))}): name it to audit it"
    return f"; {len(tests)} test files were skipped (such as {min(tests)}): name them, or their folder, to audit them"


def _package(file: Path, folder: Path, left_out: Collection[Path]) -> Path | None:
    """Return the outermost package around a file, in the folder, unless a part of it is left out."""
    around, name = package_of(file)
    package = around / name.partition(".")[0]
    if not (package / "__init__.py").exists() or not package.is_relative_to(folder.resolve()):
        return None
    shown = folder / package.relative_to(folder.resolve())
    return None if any(other.is_relative_to(shown) for other in left_out) else shown


def _holds_some(file: Path, note: Callable[[str], None]) -> bool:
    """Whether the source of a file shows a custom function; `note` is called for one that is not valid Python."""
    try:
        text = read(file)
        if not _MAY_HOLD.search(text):
            return False
        sources = home_of_file(file, text).sources()
    except TargetError as error:
        note(f"skipped: {error}")
        return False
    whole = [s for s in sources if s.defines("forward") and s.defines("backward", "vjp", "jvp")]
    return bool(whole or _OP.search(text))


def _files(folder: Path) -> Iterator[Path]:
    """Yield the Python files of a folder, tests too, in the order of their paths."""
    for path in sorted(_not_ignored(folder)):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") or part in _LEFT_OUT for part in parts)
        runs = any(PROGRAMS.fullmatch(part.removesuffix(".py")) for part in parts)
        if not hidden and not runs and path.is_file():
            yield path


def _not_ignored(folder: Path) -> Iterator[Path]:
    """Yield Python files: in a git repository those that git does not ignore."""
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
