"""`pullback rules`: the catalogue of rules, or the page of one. Formatted on a terminal, plain in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from pullback.cli.completion import RuleType
from pullback.cli.console import output_console

if TYPE_CHECKING:
    from rich.console import Console

    from pullback.check.pages import Page


@click.command(short_help="List the rules, or show the page of one.")
@click.argument("rule", type=RuleType(), required=False)
def rules(rule: str | None) -> None:
    """List all rules or a family such as PB1, or show the page of one, by id or name."""
    from pullback.check.pages import all_pages, page_named, unknown_rule

    listed = [page for page in all_pages() if rule is None or page.family == rule.upper()]
    if rule is None or listed:
        print_catalogue(listed, output_console())
        return
    found = page_named(rule)
    if found is None:
        raise click.UsageError(unknown_rule(rule))
    print_page(found, output_console())


def print_catalogue(rules: Sequence[Page], console: Console) -> None:
    """Print id, name and summary of each rule: a table on a terminal, one line per rule in a pipe."""
    from rich.table import Table
    from rich.text import Text

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


def print_page(rule: Page, console: Console) -> None:
    """Print the page of a rule: rendered Markdown on a terminal, its source in a pipe."""
    from rich.markdown import Markdown
    from rich.text import Text

    if console.is_terminal:
        console.print(Markdown(rule.text, code_theme="ansi_dark"))
    else:
        console.print(Text(rule.text), soft_wrap=True)
