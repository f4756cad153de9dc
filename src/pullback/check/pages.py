"""The pages of the rules, read from the docstrings of their files: no rule is imported, and so not PyTorch."""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent / "rules"
_FIRST_LINE = re.compile(r"(?P<name>[a-z0-9-]+) \((?P<id>PB\d{3})\): (?P<summary>.+)")


@dataclass(frozen=True, slots=True)
class Page:
    """The page of a rule.

    Attributes:
        id: permanent, e.g. "PB101".
        name: reads as "allow NAME".
        summary: its first line.
        text: what it finds, why it hurts, its limits, a bad and a good example.
    """

    id: str
    name: str
    summary: str
    text: str

    @property
    def family(self) -> str:
        """The id's first digit, e.g. "PB1"."""
        return self.id[:3]


def page_of(docstring: str | None) -> Page:
    """Return the page that a docstring is, whose first line is `name (PBnnn): summary`."""
    text = inspect.cleandoc(docstring or "")
    match = _FIRST_LINE.match(text)
    if match is None:
        raise ValueError(f"a rule's page starts with 'name (PBnnn): summary', not {text[:60]!r}")
    return Page(match["id"], match["name"], match["summary"].rstrip("."), text)


@functools.cache
def all_pages() -> tuple[Page, ...]:
    """Return the page of every rule, by id."""
    files = sorted(_FOLDER.glob("pb*.py"))
    return tuple(page_of(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))) for file in files)


def page_named(key: str) -> Page | None:
    """Return the page of the rule whose id (any case) or name is `key`."""
    return next((page for page in all_pages() if key.upper() == page.id or key.lower() == page.name), None)


def unknown_rule(key: str) -> str:
    """Return the sentence for a key that names no rule, with the nearest one that does."""
    pages = all_pages()
    if re.fullmatch(r"PB\d?", key.upper()):
        families = sorted({page.family for page in pages})
        return f"{key!r} is no rule; the families of rules are {', '.join(families[:-1])} and {families[-1]}"
    lowered = {key.lower(): key for page in pages for key in (page.id, page.name)}
    close = difflib.get_close_matches(key.lower(), lowered, n=1, cutoff=0.7)
    advice = f"did you mean {lowered[close[0]]}?" if close else "`pullback rules` lists them"
    return f"there is no rule {key!r}; {advice}"
