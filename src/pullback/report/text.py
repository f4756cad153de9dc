"""Text of a report: escaped, in short lists of ids, and wrapped, cut and indented on a console.

Names, messages and values come from audited code. Characters that move the cursor or reorder letters are escaped, and
never reach the terminal.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pullback.report.model import Severity, Status

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_UNSAFE = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
"""Unicode categories of controls, formats, surrogates, private characters and separators of lines."""
_SHORTEST_RANGE = 3
_ID_LIST = re.compile(r"PB\d{3}(?:, PB\d{3})+")

SEVERITY_STYLE: Mapping[Severity, str] = {"error": "bold red", "warning": "bold yellow", "info": "cyan"}
STATUS_STYLE: Mapping[Status, str] = {
    "ok": "green",
    "wrong": "bold red",
    "unstable": "bold red",
    "unaudited": "bold yellow",
    "warned": "yellow",
    "known": "yellow",
    "inconclusive": "yellow",
    "unsupported": "yellow",
    "intended": "cyan",
}
INDENT = 4
NARROWEST = 20
"""Columns of a text on the narrowest console."""


def clean(text: str) -> str:
    """Escape control, formatting and unpaired surrogate characters; keep newlines, and expand tabs."""
    return "".join(c if c == "\n" or _is_safe(c) else _escaped(c) for c in text.expandtabs(4))


def clean_line(text: str) -> str:
    """Escape a text, and join it into one line with single spaces."""
    return clean(" ".join(text.split()))


def _is_safe(character: str) -> bool:
    return (character.isascii() and character.isprintable()) or unicodedata.category(character) not in _UNSAFE


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def ranges(ids: Iterable[str]) -> str:
    """Return sorted unique ids, consecutive ones as a range: "PB101–PB103, PB205"."""
    runs: list[list[str]] = []
    for one in sorted(set(ids)):
        if runs and _number(one) == _number(runs[-1][-1]) + 1:
            runs[-1].append(one)
        else:
            runs.append([one])
    parts = [[f"{run[0]}–{run[-1]}"] if len(run) >= _SHORTEST_RANGE else run for run in runs]
    return ", ".join(part for run in parts for part in run)


def in_ranges(text: str) -> str:
    """Replace each list of ids in a text by its ranges."""
    return _ID_LIST.sub(lambda found: ranges(found[0].split(", ")), text)


def _number(one: str) -> int:
    return int(one.removeprefix("PB"))


def print_cut(text: Text, console: Console, lines: int, indent: int = INDENT) -> None:
    """Print a text cut to a number of lines."""
    from rich.text import Text

    width = max(NARROWEST, console.width - INDENT)
    wrapped = list(text.wrap(console, width))
    for line in wrapped:
        line.rstrip()
    if len(wrapped) > lines:
        last = Text(" ").join(wrapped[lines - 1 :])
        last.truncate(width, overflow="ellipsis")
        wrapped[lines - 1 :] = [last]
    for number, line in enumerate(wrapped):
        console.print(indented(line, indent if number == 0 else INDENT), soft_wrap=True)


def print_wrapped(text: Text, console: Console, indent: int = INDENT) -> None:
    """Print all of a text."""
    print_cut(text, console, sys.maxsize, indent)


def indented(line: Text, by: int = INDENT) -> Text:
    """Return a line after some spaces."""
    from rich.text import Text

    return Text(" " * by).append_text(line)


def labelled(severity: Severity, text: str) -> Text:
    """Return a text after its severity."""
    from rich.text import Text

    return Text.assemble((severity, SEVERITY_STYLE[severity]), f" {text}")


def count(number: int, what: str) -> str:
    """Return a number of things: "1 error", "2 errors"."""
    return f"{number} {what}{'' if number == 1 else 's'}"
