"""Completion in the shell: rules by id, and the functions of a file, which is read and not run."""

from __future__ import annotations

import ast
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class


class Rules(click.types.StringParamType):
    """Ids of rules, the beginnings of some, or names, with commas: a family first, then its rules."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[Any]]:
        """Complete the last id or name."""
        from pullback.check.pages import all_pages

        before, comma, typed = incomplete.rpartition(",")
        if len(typed) < len("PB1"):
            offered = dict.fromkeys((page.family for page in all_pages()), "")
        else:
            offered = {page.id: page.summary for page in all_pages()}
        found = {key: summary for key, summary in offered.items() if key.startswith(typed.upper())}
        found = found or {page.name: page.summary for page in all_pages() if page.name.startswith(typed.lower())}
        return [CompletionItem(before + comma + key, help=summary) for key, summary in found.items()]


class Target(click.Path):
    """A file, or a function of one after a colon."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[Any]]:
        """Complete the name of a file, or that of a function."""
        place, colon, typed = incomplete.rpartition(":")
        if not colon:
            return super().shell_complete(ctx, param, incomplete)
        names = _functions_in(place.removesuffix(":"))  # "file.py::name" is taken as well
        return [CompletionItem(f"{place}:{name}") for name in names if name.startswith(typed)]


def _functions_in(place: str) -> list[str]:
    """Return the names of the custom functions of a file or a module, then those of other functions at its top."""
    from pullback.check.find.parsed import read, source_file
    from pullback.check.find.target import locate, parse_target
    from pullback.errors import PullbackError

    with suppress(PullbackError):
        target = parse_target(place)
        spec = None if target.path else locate(target.module)
        file = target.path or (spec and spec.origin)
        if file:
            source = source_file(read(file), str(file))
            classes = [function.qualname for function in source.functions()]
            functions = [node.name for node in source.tree.body if isinstance(node, ast.FunctionDef)]
            return [name for name in classes + functions if "<locals>" not in name and not name.startswith("_")]
    return []


@add_completion_class
class _Bash(BashComplete):
    """Completion in bash, where a word ends at a colon, and only the part after it is completed."""

    _cut = 0

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor and the one at it, each with its colons."""
        args, incomplete = super().get_completion_args()
        words: list[str] = []
        for word in (*args, incomplete):
            if words and (word.startswith(":") or words[-1].endswith(":")):
                words[-1] += word
            else:
                words.append(word)
        self._cut = len(words[-1]) - len(incomplete.lstrip(":"))
        return words[:-1], words[-1]

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """Return the item as the script in bash reads it."""
        return f"{item.type},{item.value[self._cut :]}"
