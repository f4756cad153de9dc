"""Reads the comments that allow a finding: `# pullback: allow[NAME] reason`, with the name or the id of a rule."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_ALLOW = re.compile(r"#\s*pullback:\s*allow\[(?P<names>[^\]]*)\]\s*[-:–—]*\s*(?P<reason>.*)")

_MEANT = re.compile(r"#\s*pullback:\s*allow\b")
"""The beginning of such a comment, also of one without brackets."""


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment: its line, its text with the `#`, and whether it has the line for itself."""

    line: int
    text: str
    alone: bool


def comments(text: str) -> list[Comment]:
    """Return the comments of a source text that parses."""
    lines = text.split("\n")
    return [
        Comment(line, token.string, alone=not lines[line - 1][:column].strip())
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
        for line, column in [token.start]
    ]


def allowed(found: Sequence[Comment], first: int, last: int) -> tuple[dict[str, str], tuple[int, ...]]:
    """Return the rules that the comments on lines `first` to `last`, and those directly above, allow.

    Returns:
        Rule name or id -> reason, and the lines of the allow comments without brackets or without a reason.
    """
    allow: dict[str, str] = {}
    without_reason: list[int] = []
    for comment in _within(found, first, last):
        if (match := _ALLOW.match(comment.text)) is None:
            without_reason += [comment.line] * bool(_MEANT.match(comment.text))
            continue
        names = [name.strip() for name in match["names"].split(",") if name.strip()]
        reason = match["reason"].strip()
        if names and reason:
            allow.update(dict.fromkeys(names, reason))
        else:
            without_reason.append(comment.line)
    return allow, tuple(without_reason)


def _within(found: Sequence[Comment], first: int, last: int) -> Iterator[Comment]:
    alone = {comment.line for comment in found if comment.alone}
    while first - 1 in alone:
        first -= 1
    return (comment for comment in found if first <= comment.line <= last)
