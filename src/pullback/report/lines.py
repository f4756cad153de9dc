"""Lines of a report on a console: styles, and text that is wrapped, cut and indented."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from pullback.report.model import Severity, Status

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
"""Columns that a text gets on any console."""


def print_cut(text: Text, console: Console, lines: int, indent: int = INDENT) -> None:
    """Print as much of a text as fits on some lines."""
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
    """Return a line with spaces before it."""
    return Text(" " * by).append_text(line)


def labelled(severity: Severity, text: str) -> Text:
    """Return a text after its severity."""
    return Text.assemble((severity, SEVERITY_STYLE[severity]), f" {text}")


def count(number: int, what: str) -> str:
    """Return a number of things: "1 error", "2 errors"."""
    return f"{number} {what}{'' if number == 1 else 's'}"
