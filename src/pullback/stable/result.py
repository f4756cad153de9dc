"""Result of `pullback.accuracy`, and its table: one row for each dtype and derivative."""

from __future__ import annotations

import io
import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from pullback.errors import OptionError
from pullback.report.text import clean_line
from pullback.stable.measure import Point, Spurious, Summary

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Coverage = Literal["every input", "sample"]

LEGEND = """\
max ulp, mean: |computed - exact| in units in the last place (ulp) of the exact value; 0.5 is correct rounding.
> 4 ulp: share of the points, spurious values included; "3×" means 3 points, where the share is below 0.1%.
subnormal: largest error where the exact value is below the normal numbers, in distances between subnormals.
spurious: NaN or infinity where the exact value is finite, or zero where it is not; share, from the point nearest 0.
undecided: points whose exact value could not be computed; they do not count.
"""
"""Meaning of the columns and marks of the table."""

_TEXT_WIDTH = 110
_GOOD, _FAIR = 1.0, 4.0
"""Largest errors, in ulp, that the table shows in green, and those above which it shows them in red."""


@dataclass(frozen=True, slots=True)
class Row:
    """The errors of one quantity in one dtype.

    Attributes:
        dtype: the dtype, as in "float32".
        of: "value", or the derivative: "d/dx".
        coverage: whether they are of every finite input of the dtype, or of a sample.
        summary: the errors.
        exact_by: source of the exact values.
    """

    dtype: str
    of: str
    coverage: Coverage
    summary: Summary
    exact_by: str


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Measured errors of a function.

    Attributes:
        name: name of the function.
        variables: its tensors.
        domain: interval of each restricted variable; the others range over all finite numbers of the dtype.
        rows: dtype by dtype, the value and then the derivatives.
        missing: dtypes in which it does not run, and why.
        torch: version of PyTorch.
    """

    name: str
    variables: tuple[str, ...]
    domain: dict[str, tuple[float, float]]
    rows: tuple[Row, ...]
    missing: dict[str, str]
    torch: str

    def row(self, dtype: str, of: str = "value") -> Row:
        """Row of a dtype and quantity.

        Raises:
            OptionError: if there is none.
        """
        for row in self.rows:
            if (row.dtype, row.of) == (dtype, of):
                return row
        raise OptionError(f"{of!r} in {dtype} was not measured: {', '.join(f'{r.of} in {r.dtype}' for r in self.rows)}")

    def to_dict(self) -> dict[str, Any]:
        """Dictionary for `json`: infinities and NaN are text."""
        written: dict[str, Any] = _finite(asdict(self))
        return written

    def to_json(self) -> str:
        """JSON text of `to_dict`."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def __repr__(self) -> str:
        return render_text(self)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value if not isinstance(value, float) or abs(value) < float("inf") else str(value)


def render_text(measured: Accuracy) -> str:
    """Table as plain text."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=_TEXT_WIDTH, no_color=True, force_terminal=False, force_jupyter=False)
    render(measured, console)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().rstrip().split("\n"))


def render(measured: Accuracy, console: Console) -> None:
    """Print the table, and notes on it.

    Args:
        measured: the result.
        console: the output; it determines width and colour.
    """
    from rich.table import Table
    from rich.text import Text

    console.print(Text(_heading(measured), style="bold"), soft_wrap=True)
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    for heading in ("dtype", "of"):
        table.add_column(heading, no_wrap=True)
    for heading in ("points", "max ulp", "mean", "> 4 ulp", "subnormal"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("worst at", overflow="fold")
    table.add_column("spurious", overflow="fold")
    before = ""
    for row in measured.rows:
        table.add_row("" if row.dtype == before else row.dtype, row.of, *_cells(row.summary))
        before = row.dtype
    console.print(table)
    for line in _notes(measured):
        console.print(Text(line, style="dim"), soft_wrap=True)


def _heading(measured: Accuracy) -> str:
    limits = [limit for name, ends in measured.domain.items() for limit in _limits(name, *ends)]
    where = f" for {' and '.join(limits)}" if limits else ""
    return f"{clean_line(measured.name)}({', '.join(measured.variables)}){where}"


def _limits(name: str, low: float, high: float) -> list[str]:
    """Ends of an interval as comparisons; an end next to a rounder number is shown as that number, open."""
    found = []
    for end, towards, sign in ((low, -math.inf, ">"), (high, math.inf, "<")):
        if math.isfinite(end):
            beyond = math.nextafter(end, towards)
            is_open = len(repr(beyond)) < len(repr(end))
            found.append(f"{name} {sign} {beyond:g}" if is_open else f"{name} {sign}= {end:g}")
    return found


def _cells(summary: Summary) -> tuple[Text | str, ...]:
    from rich.text import Text

    style = "green" if summary.max_ulp <= _GOOD else "" if summary.max_ulp <= _FAIR else "bold red"
    measured = summary.measured > 0
    return (
        f"{summary.points}",
        Text(f"{summary.max_ulp:.3g}" if measured else "", style=style),
        f"{summary.mean_ulp:.2g}" if measured else "",
        _share(summary.above_4, summary.points),
        f"{summary.max_subnormal:.2g}" if summary.subnormal_points else "",
        "" if summary.worst is None else _at(summary.worst.point),
        _remarks(summary),
    )


def _remarks(summary: Summary) -> Text:
    from rich.text import Text

    parts = [
        Text(_spurious(name, spurious, summary), style="bold red")
        for name, spurious in (("NaN", summary.nan), ("inf", summary.inf), ("zero", summary.zero))
        if spurious.count
    ]
    if summary.undecided:
        parts.append(Text(f"{summary.undecided} undecided", style="yellow"))
    return Text("; ").join(parts)


def _spurious(name: str, spurious: Spurious, summary: Summary) -> str:
    start = "" if spurious.start is None else f" from {_at(spurious.start)}"
    return f"{name} {_share(spurious.count, summary.points)}{start}"


def _at(point: Point) -> str:
    return " ".join(f"{name}={value:.6g}" for name, value in point.items())


def _share(count: int, of: int) -> str:
    if not count:
        return "0"
    share = 100 * count / of
    return f"{share:.1f}%" if share >= 0.1 else f"{count}×"


def _notes(measured: Accuracy) -> list[str]:
    """Notes: inputs measured, source of the exact values, and dtypes that do not run."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in measured.rows:
        names = groups.setdefault(_basis(row), [])
        if row.dtype not in names:
            names.append(row.dtype)
    lines = [f"{', '.join(names)}: {coverage}; exact values from {by}." for (coverage, by), names in groups.items()]
    lines += [f"{dtype}: does not run: {clean_line(why)}" for dtype, why in measured.missing.items()]
    return [*lines, f"torch {measured.torch}"]


def _basis(row: Row) -> tuple[str, str]:
    coverage = "every finite input" if row.coverage == "every input" else "a sample, so a maximum is a lower bound"
    return coverage, row.exact_by
