"""Source files: read once, replaced as a whole, compared by a diff, and audited in an overlay of their tree."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import stat
import sysconfig
import tempfile
import tokenize
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import click

from pullback.check.find.target import package_of
from pullback.fix.patch import CannotFixError

_INSTALLED = {"site-packages", "dist-packages"}


class EditableFile:
    """A writable file with the content that was read; its path has symbolic links resolved.

    Raises:
        CannotFixError: if it cannot be read or may not be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        try:
            self.content = self.path.read_bytes()
            mode = self.path.stat().st_mode
        except OSError as error:
            raise CannotFixError(f"{path} cannot be read: {error.strerror}") from None
        # The superuser may write to any file; whoever made a file read-only did not ask for changes.
        if not mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH) or not os.access(self.path, os.W_OK):
            raise CannotFixError(f"{path} is read-only")
        self._mode = stat.S_IMODE(mode)

    def write(self, content: bytes) -> None:
        """Replace the file atomically; its mode stays.

        Raises:
            CannotFixError: if it has changed since it was read, or cannot be written.
        """
        beside = ""
        try:
            handle, beside = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(beside).chmod(self._mode)
            if self.path.read_bytes() != self.content:
                raise CannotFixError(f"{self.path.name} was changed in the meantime")
            Path(beside).replace(self.path)
        except OSError as error:
            raise CannotFixError(f"{self.path.name} cannot be written: {error.strerror}") from None
        finally:
            with contextlib.suppress(OSError):
                Path(beside).unlink() if beside else None


def is_installed(path: Path) -> bool:
    """Whether a file is part of an installed package, or of Python."""
    library = Path(sysconfig.get_path("stdlib")).resolve()
    resolved = path.resolve()
    return bool(_INSTALLED & set(resolved.parts)) or resolved.is_relative_to(library)


@contextlib.contextmanager
def overlay(changes: Mapping[Path, bytes]) -> Iterator[dict[Path, Path]]:
    """Temporary copy of the source trees of some files, with other contents of these.

    All unchanged files are links, so relative imports, neighbours and data files are found.

    Yields:
        The path of each changed file in the copy.
    """
    with tempfile.TemporaryDirectory(prefix="pullback-") as name:
        # Folders whose files are imported from different roots get separate copies.
        roots = {root: Path(name) / str(i) for i, root in enumerate(dict.fromkeys(package_of(p)[0] for p in changes))}
        for root, copy in roots.items():
            _link_tree(root, copy, [path for path in changes if path.is_relative_to(root)])
        copies = {path: roots[package_of(path)[0]] / path.relative_to(package_of(path)[0]) for path in changes}
        for path, copy in copies.items():
            copy.write_bytes(changes[path])
        yield copies


def _link_tree(folder: Path, copy: Path, changed: Collection[Path]) -> None:
    copy.mkdir()
    for entry in folder.iterdir():
        inside = [path for path in changed if path.is_relative_to(entry)]
        if entry in changed or entry.name == "__pycache__":
            continue
        if inside:
            _link_tree(entry, copy / entry.name, inside)
        else:
            (copy / entry.name).symlink_to(entry)


def unified_diff(name: str, old: bytes, new: bytes) -> str:
    """Unified diff of two contents of a Python file; empty if they are equal."""
    lines = difflib.unified_diff(_lines(old), _lines(new), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def coloured_diff(diff: str) -> str:
    """A diff in the colours of a terminal."""
    return "".join(_coloured(line) for line in diff.splitlines(keepends=True))


def _coloured(line: str) -> str:
    if line.startswith(("+++", "---")):
        return click.style(line, bold=True)
    colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[0])
    return click.style(line, fg=colour) if colour else line


def _lines(content: bytes) -> list[str]:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    text = content.decode(encoding)
    return io.StringIO(text, newline="\n").readlines()
