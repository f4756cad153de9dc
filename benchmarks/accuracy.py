"""Accuracy of the programs that the search finds, compared with the formulas as written.

Searches programs for the formulas of `accuracy_formulas.py` and their derivatives, and compares them, with PyTorch's
kernels on the CPU, with exact values. A target is *good* if it is within some ulp wherever the exact value is a normal
number, and *clean*: without a spurious NaN, infinity or 0. bfloat16 and float16 are measured at every finite number.
float32 is measured at a sample of points that the search has not seen (`accuracy_points.py`), so a maximum is a lower
bound.

Beside each figure, at the same points: the formula as written under PyTorch's autograd; the same computed in a wider
dtype and rounded at the end (float64 for float32, float32 for 16 bits); and PyTorch's own function, if there is one.

    python benchmarks/accuracy.py [--rows never,second] [--only TEXT] [--json FILE [--keep]] [--write docs/numerics.md]

The whole table takes about half an hour. `--json FILE` saves every formula as soon as it is measured, and `--keep`
skips the formulas that are in this file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accuracy_formulas import FORMULAS, SEVERAL, Case
from accuracy_points import fresh
from accuracy_table import markdown, print_tables
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from pullback.stable.derivative import derivative
from pullback.stable.evaluate import evaluate
from pullback.stable.measure import summarise
from pullback.stable.oracle.values import Truth, exact
from pullback.stable.sampling import every_number
from pullback.stable.search.search import FormSearch, Wide
from pullback.stable.term import Term, parse, variables

SEED, POINTS = 20261, 60_000


@dataclass(frozen=True)
class Setting:
    """One row of the table: formulas, the derivatives to measure, and the options of the search."""

    cases: Sequence[Case]
    orders: tuple[int, ...] = (0, 1)
    wide: Wide = "where-needed"
    dtype: torch.dtype = torch.float32

    def targets(self, names: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the derivatives of a formula that are measured, by the variables in turn."""
        by: dict[int, list[tuple[str, ...]]] = {0: [()], 1: [(n,) for n in names], 2: [(n, n) for n in names]}
        return [target for order in self.orders for target in by[order]]


ROWS = {
    "never": Setting(FORMULAS, wide="never"),
    "where-needed": Setting(FORMULAS),
    "bfloat16": Setting(FORMULAS, dtype=torch.bfloat16),
    "float16": Setting(FORMULAS, dtype=torch.float16),
    "several-never": Setting(SEVERAL, wide="never"),
    "several": Setting(SEVERAL),
    "second-never": Setting(FORMULAS, (2,), wide="never"),
    "second": Setting(FORMULAS, (2,)),
}


@dataclass
class Score:
    """Errors of one method at the points."""

    ulp: float
    nan: int = 0
    inf: int = 0
    zero: int = 0
    at: dict[str, float] = field(default_factory=dict)


@dataclass
class Result:
    """One target in one setting."""

    row: str
    formula: str
    text: str
    target: str
    points: int = 0
    undecided: int = 0
    seconds: float = 0.0
    processor: float = 0.0
    pieces: int = 0
    program: list[str] = field(default_factory=list)
    error: str = ""
    scores: dict[str, Score] = field(default_factory=dict)


class Bench:
    """Measurements, with the searches and exact values that several rows share."""

    def __init__(self) -> None:
        self._searches: dict[tuple[str, Wide, torch.dtype], FormSearch] = {}
        self._truths: dict[tuple[str, tuple[str, ...], torch.dtype], tuple[dict[str, Any], Truth]] = {}

    def measure(self, row: str, case: Case) -> Iterator[Result]:
        """Yield the results of a formula."""
        setting, formula = ROWS[row], parse(case.text)
        names = variables(formula)
        key = (case.text, setting.wide, setting.dtype)
        search = self._searches.setdefault(key, FormSearch(formula, case.domain, setting.wide, setting.dtype))
        for by in setting.targets(names):
            result = Result(row, case.name, case.text, label(by))
            at, truth = self._truth(case, names, by, setting.dtype)
            result.undecided = int(truth.undecided.sum())
            for method, run in methods(case, formula, names, by, setting.dtype).items():
                with suppress(NotImplementedError):  # no kernel, or no second derivative
                    result.scores[method], result.points = score(run, names, at, truth, setting.dtype)
            wall, processor = time.perf_counter(), time.process_time()
            try:
                found = search.find(*by)
            except Exception as error:  # it counts as a target that is not good
                result.error = f"{type(error).__name__}: {error}"
            else:
                result.seconds, result.processor = time.perf_counter() - wall, time.process_time() - processor
                result.pieces, result.program = len(list(found.program.terms())), found.program.lines()
                program = found.program
                run = lambda xs, program=program: program.run(dict(zip(names, xs, strict=True)))  # noqa: E731
                result.scores["found"], result.points = score(run, names, at, truth, setting.dtype)
            yield result

    def _truth(
        self, case: Case, names: Sequence[str], by: tuple[str, ...], dtype: torch.dtype
    ) -> tuple[dict[str, Any], Truth]:
        key = (case.text, by, dtype)
        if key not in self._truths:
            if dtype.itemsize == 2 and len(names) == 1:
                x = every_number(dtype)
                low, high = case.domain.get(names[0], (-torch.inf, torch.inf))
                at = {names[0]: x[(x >= low) & (x <= high)]}
            else:
                at = fresh(names, case.domain, POINTS, SEED + len(by))
            self._truths[key] = at, exact([target_of(parse(case.text), by)], at)[0]
        return self._truths[key]


Run = Callable[[list[Tensor]], Tensor]


def score(run: Run, names: Sequence[str], at: dict[str, Any], truth: Truth, dtype: torch.dtype) -> tuple[Score, int]:
    """Return the score of a method, the worse one of contiguous and strided tensors, and the number of points."""
    tensors = [torch.from_numpy(at[name]).to(dtype) for name in names]
    strided = [torch.stack([x, x], dim=1)[:, 0] for x in tensors]
    (found,) = summarise([[run(xs).to(dtype) for xs in (tensors, strided)]], [truth], at)
    where = {} if found.worst is None else found.worst.point
    return Score(found.max_ulp, found.nan.count, found.inf.count, found.zero.count, where), found.points


def methods(case: Case, formula: Term, names: Sequence[str], by: tuple[str, ...], dtype: torch.dtype) -> dict[str, Run]:
    """Return the methods that a program is compared with."""

    def written(xs: list[Tensor]) -> Tensor:
        return evaluate(formula, dict(zip(names, xs, strict=True)))

    wider = torch.float64 if dtype == torch.float32 else torch.float32
    runs = {"written": autograd(written, names, by, dtype), "wider": autograd(written, names, by, wider)}
    if case.builtin is not None:
        builtin = case.builtin
        runs["builtin"] = autograd(lambda xs: builtin(*xs), names, by, dtype)
    return runs


def autograd(function: Run, names: Sequence[str], by: tuple[str, ...], dtype: torch.dtype) -> Run:
    """Return the derivative of a function by some variables in turn, as PyTorch's autograd computes it in a dtype."""

    def run(xs: list[Tensor]) -> Tensor:
        leaves = [x.to(dtype).requires_grad_(bool(by)) for x in xs]
        value = function(leaves)
        for name in by:
            leaf = leaves[names.index(name)]
            (slope,) = torch.autograd.grad(value.sum(), leaf, create_graph=True, allow_unused=True)
            value = torch.zeros_like(leaf) if slope is None else slope
            value = value if value.requires_grad else value + 0 * leaf
        return value.detach()

    return run


def target_of(formula: Term, by: tuple[str, ...]) -> Term:
    for name in by:
        formula = derivative(formula, name)
    return formula


def label(by: tuple[str, ...]) -> str:
    """Return the notation of a derivative."""
    return "f" if not by else f"d{'²' if len(by) == 2 else ''}/d{by[0]}{'²' if len(by) == 2 else ''}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS), help=f"rows to measure, of {', '.join(ROWS)} (default: all)")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="measure only formulas whose name or text contains TEXT"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="save every result in FILE as soon as it is measured")
    parser.add_argument("--keep", action="store_true", help="skip the formulas whose results are in that file")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="update the tables between the markers of a page")
    options = parser.parse_args()
    rows = options.rows.split(",")
    if unknown := [row for row in rows if row not in ROWS]:
        parser.error(f"no row is called {unknown[0]!r}: {', '.join(ROWS)}")
    if (options.only or len(rows) < len(ROWS)) and options.write and not options.keep:
        parser.error("--write takes all rows and formulas: measure them all, or --keep what --json FILE has")
    torch.set_num_threads(1)
    results = read(options.json) if options.keep and options.json and options.json.exists() else []
    known = {(r.row, r.formula) for r in results}
    work = [(row, c) for row in rows for c in ROWS[row].cases if options.only in f"{c.name} {c.text}"]
    work = [(row, c) for row, c in work if (row, c.name) not in known]
    bench = Bench()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(work))
        for row, case in sorted(work, key=lambda w: w[1].text):  # what is shared is then had once
            progress.update(task, description=f"{row}: {case.name}")
            results += bench.measure(row, case)
            progress.advance(task)
            if options.json:
                options.json.write_text(json.dumps([asdict(r) for r in results], indent=1), encoding="utf-8")
    order = {(row, case.name): i for i, (row, case) in enumerate((r, c) for r in ROWS for c in ROWS[r].cases)}
    results.sort(key=lambda r: order[r.row, r.formula])
    print_tables(results, Console(width=None if sys.stdout.isatty() else 160))
    if options.write:
        renew(options.write, markdown(results))
    return 0


def read(file: Path) -> list[Result]:
    """Return the results in a file."""
    records = json.loads(file.read_text(encoding="utf-8"))
    return [Result(**{**r, "scores": {m: Score(**s) for m, s in r["scores"].items()}}) for r in records]


def renew(page: Path, tables: str) -> None:
    """Replace the text between the markers of a page."""
    begin, end = (f"<!-- benchmarks/accuracy.py: {word} -->" for word in ("begin", "end"))
    before, rest = page.read_text(encoding="utf-8").split(begin)
    _, after = rest.split(end)
    page.write_text(f"{before}{begin}\n{tables}{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
