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
_NAME = r"(?P<name>[a-z0-9-]+) \((?P<id>PB\d{3})\)"
_FIRST_LINE = re.compile(rf"{_NAME}: (?P<summary>.+)")
_STATIC_HALF = re.compile(rf"^## In the source: {_NAME}$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Alias:
    """Id and name of the static half of a rule, which was a rule of its own."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Page:
    """The page of a rule.

    Attributes:
        id: permanent, e.g. "PB101".
        name: reads as "allow NAME".
        summary: its first line.
        text: what it finds, why it hurts, its limits, a bad and a good example.
        alias: id and name of its static half, if a section is headed `In the source: name (PBnnn)`.
    """

    id: str
    name: str
    summary: str
    text: str
    alias: Alias | None = None

    @property
    def family(self) -> str:
        """The id's first digit, e.g. "PB1"."""
        return self.id[:3]

    @property
    def ids(self) -> tuple[str, ...]:
        """Its id, and that of its static half."""
        return (self.id,) if self.alias is None else (self.id, self.alias.id)

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, and that of its static half."""
        return (self.name,) if self.alias is None else (self.name, self.alias.name)

    def is_named(self, key: str) -> bool:
        """Whether `key` is its id (in any case) or its name, or those of its static half."""
        return key.upper() in self.ids or key.lower() in self.names


def page_of(docstring: str | None) -> Page:
    """The page that a docstring holds, whose first line is `name (PBnnn): summary`."""
    text = inspect.cleandoc(docstring or "")
    match = _FIRST_LINE.match(text)
    if match is None:
        raise ValueError(f"a rule's page starts with 'name (PBnnn): summary', not {text[:60]!r}")
    half = _STATIC_HALF.search(text)
    alias = None if half is None else Alias(half["id"], half["name"])
    return Page(match["id"], match["name"], match["summary"].rstrip("."), text, alias)


@functools.cache
def all_pages() -> tuple[Page, ...]:
    """The page of every rule, by id."""
    files = sorted(_FOLDER.glob("pb*.py"))
    return tuple(page_of(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))) for file in files)


def page_named(key: str) -> Page | None:
    """The page of the rule whose id (any case) or name is `key`, or whose static half had that id or name."""
    return next((page for page in all_pages() if page.is_named(key)), None)


def unknown_rule(key: str) -> str:
    """The message about a key that names no rule, with the nearest one that does."""
    pages = all_pages()
    if re.fullmatch(r"PB\d?", key.upper()):
        families = sorted({page.family for page in pages})
        return f"{key!r} is not a rule; the families of rules are {', '.join(families[:-1])} and {families[-1]}"
    lowered = {key.lower(): key for page in pages for key in (*page.ids, *page.names)}
    close = difflib.get_close_matches(key.lower(), lowered, n=1, cutoff=0.7)
    advice = f"did you mean {lowered[close[0]]}?" if close else "`pullback rules` lists them"
    return f"no rule {key!r}; {advice}"
