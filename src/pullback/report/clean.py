"""Makes text of audited code safe to print: characters that move the cursor or reorder letters are escaped."""

from __future__ import annotations

import unicodedata

_UNSAFE = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def clean(text: str) -> str:
    """Spell out control, formatting and unpaired surrogate characters; newlines stay, tabs become spaces."""
    return "".join(c if c == "\n" or _is_safe(c) else _spelled(c) for c in text.expandtabs(4))


def clean_line(text: str) -> str:
    """Return `clean` text on one line, runs of white space as one space."""
    return clean(" ".join(text.split()))


def _is_safe(character: str) -> bool:
    return (character.isascii() and character.isprintable()) or unicodedata.category(character) not in _UNSAFE


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
