"""Shell completion of rule ids, and of the functions of a file, which is parsed and not run."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class


class RuleType(click.types.StringParamType):
    """Ids of rules, prefixes of ids, or names, separated by commas. Families are offered first, then their rules."""

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


class TargetType(click.Path):
    """A file, or `FILE:NAME`."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[Any]]:
        """Complete the name of a file, or after a colon that of a function."""
        place, colon, typed = incomplete.rpartition(":")
        if not colon:
            return super().shell_complete(ctx, param, incomplete)
        names = _function_names(place.removesuffix(":"))  # "file.py::name" is accepted, too
        return [CompletionItem(f"{place}:{name}") for name in names if name.startswith(typed)]


def _function_names(place: str) -> list[str]:
    from pullback.check.find.target import function_names
    from pullback.errors import PullbackError

    with suppress(PullbackError):
        return function_names(place)
    return []


@add_completion_class
class _Bash(BashComplete):
    """Completion in bash, which splits words at colons and completes only the part after the last one."""

    _cut = 0

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor and the word at the cursor, rejoined at colons."""
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
        """Return the item in the format of click's bash script."""
        return f"{item.type},{item.value[self._cut :]}"
