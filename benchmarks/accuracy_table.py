"""Tables of `accuracy.py`, for the terminal and for the docs."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from accuracy import Result, Score

LIMITS = {"never": 4, "where-needed": 1, "bfloat16": 0.51, "float16": 0.51}
"""In ulp, of the rows for which it is not 4."""
TITLES = {
    "never": '25 formulas and gradients, float32, `wide="never"`',
    "where-needed": '25 formulas and gradients, float32, `wide="where-needed"`',
    "bfloat16": "25 formulas and gradients, bfloat16",
    "float16": "25 formulas and gradients, float16",
    "several-never": '20 formulas of two or three variables, first derivatives, `wide="never"`',
    "several": '20 formulas of two or three variables, first derivatives, `wide="where-needed"`',
    "second-never": 'second derivatives of the 25, `wide="never"`',
    "second": 'second derivatives of the 25, `wide="where-needed"`',
}
PAIRS = (("never", "where-needed"), ("second-never", "second"), ("several-never", "several"))
METHODS = ("written", "wider", "builtin")
HEADS = {"written": "as written", "wider": "in float64", "builtin": "PyTorch's own"}
PAIR_TITLES = {
    "never": "The 25 formulas",
    "second-never": "Second derivatives of the 25",
    "several-never": "Two and three variables",
}


def is_good(score: Score | None, row: str) -> bool:
    """Whether a method is within the row's limit and clean."""
    return score is not None and score.ulp <= LIMITS.get(row, 4) and not (score.nan or score.inf or score.zero)


def figures(results: Sequence[Result]) -> Iterable[tuple[str, ...]]:
    """Yield a row for each setting: title, limit, number of targets, number of good ones by method, coverage."""
    for row, title in TITLES.items():
        some = [r for r in results if r.row == row]
        if not some:
            continue
        counts = []
        for method in (*METHODS, "found"):
            have = [r.scores[method] for r in some if method in r.scores]
            of = f" of {len(have)}" if method == "builtin" else ""
            counts.append(f"{sum(is_good(s, row) for s in have)}{of}" if have else "–")
        sample = "every number" if row in ("bfloat16", "float16") else "sampled"
        yield title, f"{LIMITS.get(row, 4)}", sample, str(len(some)), *counts


def times(results: Sequence[Result]) -> Iterable[tuple[str, str, str]]:
    """Yield, for each setting with values and gradients, the median and the worst time of a formula, in seconds."""
    for row, title in TITLES.items():
        wall: dict[str, float] = {}
        for r in results:
            if r.row == row and not row.startswith("second"):
                wall[r.formula] = wall.get(r.formula, 0.0) + r.processor
        if wall:
            yield title, f"{median(wall.values()):.1f}", f"{max(wall.values()):.0f}"


def cell(result: Result | None, method: str, mark: str = "") -> str:
    """Return a score as text: the largest error, then the shares of spurious values."""
    if result is None or method not in result.scores:
        return result.error.split(":")[0] if result and method == "found" and result.error else "–"
    score = result.scores[method]
    kinds = ((score.nan, "NaN"), (score.inf, "inf"), (score.zero, "0"))
    text = " ".join([_short(score.ulp), *(f"{w} {_share(n, result.points)}" for n, w in kinds if n)])
    return f"{mark}{text}{mark}" if method == "found" and not is_good(score, result.row) else text


def _short(ulp: float) -> str:
    return (
        f"{ulp:.2f}"
        if ulp < 10
        else f"{ulp:.0f}"
        if ulp < 1000
        else f"{ulp:.0e}".replace("e+0", "e").replace("e+", "e")
    )


def _share(count: int, points: int) -> str:
    return f"{count / max(points, 1):.0%}" if count > points / 200 else f"{count}×"


def details(results: Sequence[Result], pair: tuple[str, str], mark: str) -> Iterable[tuple[str, ...]]:
    """Yield a row for each target: formula, target, the other methods, the programs found with and without float64."""
    by_key = {(r.row, r.formula, r.target): r for r in results}
    for formula, target in dict.fromkeys((r.formula, r.target) for r in results if r.row in pair):
        found = [by_key.get((row, formula, target)) for row in pair]
        one = next(r for r in found if r is not None)
        yield formula, target, *(cell(one, m) for m in METHODS), *(cell(r, "found", mark) for r in found)


def print_tables(results: Sequence[Result], console: Console) -> None:
    """Print all that was measured."""
    for pair in PAIRS:
        rows = list(details(results, pair, ""))
        if rows:
            _print(console, PAIR_TITLES[pair[0]], ["formula", "of", *HEADS.values(), *pair], rows)
    for row in ("bfloat16", "float16"):
        some = [r for r in results if r.row == row]
        lines = [(r.formula, r.target, *(cell(r, m) for m in (*METHODS, "found"))) for r in some]
        if lines:
            heads = ["formula", "of", "as written", "in float32", "PyTorch's own", "found"]
            _print(console, f"{row}, every number", heads, lines)
    heads = ["good", "≤ ulp", "", "of", "as written", "in wider", "PyTorch's own", "found"]
    _print(console, "", heads, figures(results))
    _print(console, "", ["processor seconds a formula", "median", "worst"], times(results))
    for r in results:
        if r.error:
            console.print(f"{r.row} {r.formula} {r.target}: {r.error}", markup=False)


def _print(console: Console, title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for i, head in enumerate(heads):
        table.add_column(head, justify="left" if i < 2 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print()


def markdown(results: Sequence[Result]) -> str:
    """Return the tables of the docs."""
    version = f"Measured with PyTorch {torch.__version__.split('+')[0]} on the CPU, {platform.machine()}, one thread."
    heads = [
        "good and clean: how many targets",
        "≤ ulp",
        "points",
        "of",
        "as written",
        "wider",
        "PyTorch's own",
        "found",
    ]
    parts = [
        version,
        _table(heads, figures(results)),
        _table(["search, processor seconds", "median", "worst"], times(results)),
    ]
    for pair in PAIRS:
        titles = ["formula", "of", *HEADS.values(), *(f'"{row.removesuffix("-never")}"' for row in pair)]
        titles[-2:] = ['`wide="never"`', '`"where-needed"`']
        parts += [f"### {PAIR_TITLES[pair[0]]}", _table(titles, details(results, pair, "**"))]
    bad = [r for r in results if r.row in ("bfloat16", "float16") and not is_good(r.scores.get("found"), r.row)]
    lines = [f"- {r.formula}, {r.target}, in {r.row}: {cell(r, 'found')}" for r in bad]
    parts += ["### In 16 bits, not within 0.51 ulp", "\n".join(lines) or "None."]
    return "\n\n".join(parts) + "\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["--" if i < 1 else "--:" for i in range(len(heads))]
    lines = [heads, rule, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
