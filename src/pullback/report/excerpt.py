"""The lines of source that a finding speaks of."""

from __future__ import annotations

import tokenize
from dataclasses import dataclass
from pathlib import Path

from pullback.report.clean import clean
from pullback.report.model import Location

_AFTER = 2
_LARGEST = 1 << 20
"""Bytes of a file that is read for it."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of source, safe to show.

    Attributes:
        number: from 1 on.
        text: without its end.
        marked: whether the finding is about this line.
    """

    number: int
    text: str
    marked: bool


def excerpt(location: Location) -> list[Line]:
    """Return the line of a location and those after it; none where the file cannot be read."""
    if location.file is None or location.line is None:
        return []
    path = Path(location.file)
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return []
        with tokenize.open(path) as file:
            lines = file.read().splitlines()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return []
    if location.line > len(lines):
        return []
    last = min(len(lines), location.line + _AFTER)
    return [Line(n, clean(lines[n - 1].rstrip()), n == location.line) for n in range(location.line, last + 1)]
