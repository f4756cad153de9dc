"""Source files, read once and replaced as a whole, unless they have changed since."""

from __future__ import annotations

import contextlib
import os
import stat
import sysconfig
import tempfile
from pathlib import Path

from pullback.fix.model import CannotFixError

_INSTALLED = {"site-packages", "dist-packages"}


class SourceFile:
    """A file with the content that was read; its path has symbolic links resolved.

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
