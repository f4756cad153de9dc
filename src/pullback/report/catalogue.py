"""The catalogue of rules for people: a table, or the page of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from pullback.check.pages import Page


def render_catalogue(rules: Sequence[Page], console: Console) -> None:
    """Print id, name and summary of each rule: a table on a terminal, one line each elsewhere."""
    width = max((len(rule.name) for rule in rules), default=0)
    if not console.is_terminal:
        for rule in rules:
            console.print(Text(f"{rule.id}  {rule.name:<{width}}  {rule.summary}"), soft_wrap=True)
        return
    table = Table(box=None, padding=(0, 1), pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="dim")
    for rule in rules:
        table.add_row(Text(rule.id), Text(rule.name), Text(rule.summary))
    console.print(table)


def render_page(rule: Page, console: Console) -> None:
    """Print the page of a rule: formatted on a terminal, as written elsewhere."""
    if console.is_terminal:
        console.print(Markdown(rule.text, code_theme="ansi_dark"))
    else:
        console.print(Text(rule.text), soft_wrap=True)
