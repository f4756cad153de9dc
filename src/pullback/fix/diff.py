"""Unified diff of a fix."""

from __future__ import annotations

import difflib
import io
import tokenize

import click


def unified(name: str, old: bytes, new: bytes) -> str:
    """Return the difference between two texts of a Python file; empty if there is none."""
    lines = difflib.unified_diff(_lines(old), _lines(new), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def coloured(diff: str) -> str:
    """Return a diff with the colours of a terminal."""
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
