"""The cache on disk, in the user's cache directory: artefacts that Pullback reuses in later processes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KINDS = {"kernels": "*.so", "headers": "*.gch", "sources": "*.py", "nodes": "*.so", "certificates": "*.stable.toml"}
"""Folders of the cache, each with the pattern of its entries; other files lie beside them."""


def root() -> Path:
    """Folder of the cache: `PULLBACK_CACHE_DIR`, else `pullback` in the user's cache directory.

    Raises:
        RuntimeError: if the user has no home.
    """
    given = os.environ.get("PULLBACK_CACHE_DIR")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pullback"


def is_private(folder: Path) -> bool:
    """Whether a folder belongs to the user, and nobody else may write to it.

    Only such a folder is loaded from: what another user can write to would run as this one.
    """
    at = folder.stat()
    return not hasattr(os, "getuid") or (at.st_uid == os.getuid() and not at.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """Folder of the cache: its kind, the number of entries, and their bytes."""

    kind: str
    entries: int
    size: int


def contents() -> list[CacheFolder]:
    """Contents of the cache, by kind."""
    found = []
    for kind, pattern in KINDS.items():
        sizes = [path.stat().st_size for path in (root() / kind).glob(pattern)]
        found.append(CacheFolder(kind, len(sizes), sum(sizes)))
    return found


def clear(kind: str) -> int:
    """Remove the entries of one kind and the files beside them, and return the number of entries.

    A process that has loaded a kernel keeps it. A process that is building one rebuilds it, or runs without it.
    """
    entries = 0
    for path in _files(root() / kind):
        entries += path.match(KINDS[kind])
        path.unlink(missing_ok=True)
    return entries


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.glob("*")) if path.is_file())
