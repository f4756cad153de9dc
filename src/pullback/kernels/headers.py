"""Precompiled headers for all kernels: parsing the headers takes most of a kernel's compilation.

A precompiled header is stored in the user's cache, beside its text, under the hash of everything that it depends on;
the compiler finds it when it includes the text. A compiler ignores one that it did not make itself, or made with other
flags, and parses the text.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from pullback import caches
from pullback.errors import RunnerError

_useless: set[Path] = set()
"""Headers that failed in this process, which does not try them again."""


def folder() -> Path:
    """Return where they are kept."""
    return caches.root() / "headers"


def ahead(text: str, parts: Sequence[str], compile_in: Callable[[list[str], Path], None]) -> Path | None:
    """Return a precompiled header; `None` where there can be none, and a kernel has to parse the text.

    Args:
        text: of the header.
        parts: further dependences, for the hash.
        compile_in: runs the compiler with given arguments in a folder.
    """
    key = hashlib.sha256("\0".join([text, *parts]).encode()).hexdigest()[:32]
    header = folder() / f"{key}.h"
    if header in _useless:
        return None
    try:
        header.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not caches.is_private(header.parent):
            return None
        if not _made(header).exists():
            _make(header, text, compile_in)
    except (OSError, RunnerError):
        _useless.add(header)
        return None
    return header


def discard(header: Path) -> None:
    """Remove one that is damaged: the next process makes it again."""
    _useless.add(header)
    _made(header).unlink(missing_ok=True)


def _made(header: Path) -> Path:
    return header.with_suffix(".h.gch")


def _make(header: Path, text: str, compile_in: Callable[[list[str], Path], None]) -> None:
    from filelock import FileLock  # here, since it takes a while

    with FileLock(str(header.with_suffix(".lock"))):
        if _made(header).exists():
            return
        with tempfile.TemporaryDirectory(dir=header.parent, prefix="making-") as made:
            here = Path(made)
            (here / "all.h").write_text(text)
            (here / "all.h").replace(header)  # clang++ remembers where the text lay when it was compiled
            compile_in(["-x", "c++-header", str(header.absolute()), "-o", "all.h.gch"], here)
            (here / "all.h.gch").replace(_made(header))
