"""Result of `pullback stabilise`, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pullback.report.clean import clean_line

if TYPE_CHECKING:
    from rich.console import Console

    from pullback.stable.renew import Renewal


def render(renewal: Renewal, console: Console) -> None:
    """Print the errors of each form beside those of the formula as written."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("op", "dtype", "of", "error"):
        table.add_column(column, overflow="fold")
    for row in renewal.rows:
        table.add_row(*map(clean_line, row))
    if renewal.made:
        console.print(table)
    for name, why in renewal.left:
        console.print(f"{clean_line(name)} stays as written: {clean_line(why)}", markup=False)
    if renewal.path is not None:
        console.print(f"Written to {clean_line(str(renewal.path))}", markup=False)
