"""A copy of a source tree with some files changed: new source is audited there before it is written elsewhere.

All unchanged files are links, so relative imports, neighbours and data files are found.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from pullback.check.find.target import package_of


@contextlib.contextmanager
def shadow(changes: Mapping[Path, bytes]) -> Iterator[dict[Path, Path]]:
    """Make the copy, for as long as it lasts; yield where each changed file is in it."""
    with tempfile.TemporaryDirectory(prefix="pullback-") as name:
        # Folders whose files are imported from different places get separate copies.
        roots = {root: Path(name) / str(i) for i, root in enumerate(dict.fromkeys(package_of(p)[0] for p in changes))}
        for root, copy in roots.items():
            _mirror(root, copy, [path for path in changes if path.is_relative_to(root)])
        places = {path: roots[package_of(path)[0]] / path.relative_to(package_of(path)[0]) for path in changes}
        for path, place in places.items():
            place.write_bytes(changes[path])
        yield places


def _mirror(folder: Path, copy: Path, changed: Collection[Path]) -> None:
    copy.mkdir()
    for entry in folder.iterdir():
        inside = [path for path in changed if path.is_relative_to(entry)]
        if entry in changed or entry.name == "__pycache__":
            continue
        if inside:
            _mirror(entry, copy / entry.name, inside)
        else:
            (copy / entry.name).symlink_to(entry)
