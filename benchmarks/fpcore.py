"""Number of unseen formulas that the search makes accurate.

Reads every FPCore of one variable in some folders (`fpcore_reader.py`), searches a program for it and for its
derivative, and measures these in float32 at points that the search does not see: uniform in the domain and around 0, of
any magnitude, near the ends of the domain, and near points where the exact value ceases to exist or changes its sign.
The peer is the formula as written under PyTorch's autograd, in float32 and in float64.

Only points count where the exact value is a normal float32. A target is *good* if it is within 4 ulp at all of them,
without NaN, infinity or 0 there, and without NaN wherever an exact value exists. A target without such points is left
out.

The formulas are not part of this repository, so that the search is not tuned to them. Two collections, both
MIT-licensed, are `bench` of github.com/herbie-fp/herbie and `benchmarks` of github.com/FPBench/FPBench.

    python benchmarks/fpcore.py FOLDER... [--wide never] [--only TEXT] [--every 3] [--limit N] [--json FILE]
"""

import argparse
import json
import sys
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from fpcore_reader import Core, cores

from pullback.errors import PullbackError
from pullback.stable.derivative import derivative
from pullback.stable.evaluate import evaluate
from pullback.stable.oracle.values import exact
from pullback.stable.search.search import FormSearch
from pullback.stable.term import Term, show

LARGEST, SMALLEST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
GOOD = 4.0
METHODS = ("naive32", "naive64", "found")


@dataclass
class Measured:
    """Errors of one method: the largest in ulp, its point, and the number of spurious NaN, infinities and zeros."""

    worst: float
    at: float
    nan: int
    infinite: int
    zero: int

    @property
    def good(self) -> bool:
        return self.worst <= GOOD and not (self.nan or self.infinite or self.zero)

    def __str__(self) -> str:
        wrong = ((self.nan, "nan"), (self.infinite, "inf"), (self.zero, "0"))
        return " ".join([f"{self.worst:.3g}", *(word for count, word in wrong if count)])


@dataclass
class Row:
    """One target: a formula or its derivative."""

    name: str
    file: str
    target: str
    formula: str
    domain: tuple[float, float]
    points: int = 0
    undecided: int = 0
    seconds: float = 0.0
    nodes: int = 0
    searched: float = 0.0
    program: list[str] = field(default_factory=list)
    error: str = ""
    methods: dict[str, Measured] = field(default_factory=dict)

    def good(self, method: str) -> bool:
        return method in self.methods and self.methods[method].good


def points_of(target: Term, low: float, high: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return float32 points of an interval, as described above."""
    windows = [(max(low, -size), min(high, size)) for size in (LARGEST, 100.0, 10.0)]
    near, nearer = ((a, b) if a < b else windows[0] for a, b in windows[1:])
    parts = [
        rng.choice([-1, 1], count) * 2.0 ** rng.uniform(-126, 128, count),
        rng.choice([-1, 1], count // 2) * 2.0 ** rng.uniform(-30, 10, count // 2),
        rng.uniform(*near, count),
        rng.uniform(*nearer, count // 2),
        *(_around(end, count // 8, rng) for end in {low, high, 0.0, 1.0, -1.0} if np.isfinite(end)),
    ]
    x = _kept(np.concatenate(parts), low, high)
    value = exact([target], {"x": x})[0].high
    for edge in (np.isnan(value), np.sign(value)):
        places = np.flatnonzero(edge[1:] != edge[:-1])
        for place in rng.permutation(places)[:8]:
            middle = _bisected(target, x[place], x[place + 1])
            x = np.concatenate([x, *(_around(m, 60, rng) for m in middle)])
    return _kept(x, low, high)


def _around(centre: float, count: int, rng: np.random.Generator) -> np.ndarray:
    scale = abs(centre) or 1.0
    return centre + scale * rng.choice([-1, 1], count) * 2.0 ** rng.uniform(-24, 0, count)


def _kept(x: np.ndarray, low: float, high: float) -> np.ndarray:
    with np.errstate(over="ignore"):
        x = np.unique(x.astype(np.float32)).astype(float)
    return x[np.isfinite(x) & (x >= low) & (x <= high)]


def _bisected(target: Term, low: float, high: float) -> tuple[float, float]:
    """Return neighbouring numbers between which the sign of a target changes or its value ceases to exist."""
    kinds = [_kind(target, x) for x in (low, high)]
    if kinds[0] == kinds[1]:
        return low, high
    for _ in range(40):
        middle = float(np.float32((low + high) / 2))
        if middle in (low, high):
            break
        low, high = (middle, high) if _kind(target, middle) == kinds[0] else (low, middle)
    return low, high


def _kind(target: Term, x: float) -> str:
    value = exact([target], {"x": np.array([x])})[0].high[0]
    return "none" if np.isnan(value) else str(np.sign(value))


def measured(values: np.ndarray, truth: np.ndarray, x: np.ndarray) -> Measured:
    """Compare float32 values with exact ones."""
    size = np.abs(truth)
    normal = (size >= SMALLEST) & (size <= LARGEST)
    wrong = [normal & (values == 0), ~np.isnan(truth) & np.isnan(values), (size <= LARGEST) & np.isinf(values)]
    exponent = np.frexp(np.where(normal, size, 1.0))[1]
    error = np.where(normal, np.abs(values - truth) / np.ldexp(1.0, exponent - 24), 0.0)
    error = np.where(np.isfinite(error), error, 1e9)
    zero, nan, infinite = (int(w.sum()) for w in wrong)
    place = int(np.argmax(error))
    return Measured(float(error[place]), float(x[place]), nan, infinite, zero)


def autograd(formula: Term, x: np.ndarray, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of a formula as written and of PyTorch's derivative of it, as float32."""
    leaf = torch.from_numpy(x).to(dtype).requires_grad_(True)
    value = evaluate(formula, {"x": leaf}).expand_as(leaf)
    (slope,) = torch.autograd.grad(value.sum(), leaf, allow_unused=True)
    slope = torch.zeros_like(leaf) if slope is None else slope
    return value.detach().float().double().numpy(), slope.float().double().numpy()


def rows_of(core: Core, wide: str, seed: int, count: int) -> list[Row]:
    """Search and measure one formula and its derivative."""
    search = FormSearch(core.formula, domain={"x": core.domain}, wide=wide)
    targets = [((), "forward", core.formula), (("x",), "gradient", derivative(core.formula, "x"))]
    rows = []
    for by, label, target in targets:
        row = Row(core.name, core.file, label, show(core.formula), core.domain)
        rows.append(row)
        rng = np.random.default_rng((seed, *core.name.encode(), len(by)))
        x = points_of(target, *core.domain, count, rng)
        truth = exact([target], {"x": x})[0]
        size = np.abs(truth.high)
        row.points = int(((size >= SMALLEST) & (size <= LARGEST)).sum())
        row.undecided = int(truth.undecided.sum())
        if not row.points:
            continue
        for method, dtype in (("naive32", torch.float32), ("naive64", torch.float64)):
            row.methods[method] = measured(autograd(core.formula, x, dtype)[len(by)], truth.high, x)
        start = time.perf_counter()
        try:
            found = search.find(*by)
            row.program, row.nodes, row.searched = found.program.lines(), found.nodes, found.worst
            values = found.program.run({"x": torch.from_numpy(x).float()}).double().numpy()
            row.methods["found"] = measured(values, truth.high, x)
        except (PullbackError, ArithmeticError, ValueError, IndexError, KeyError, AssertionError, RuntimeError):
            row.error = traceback.format_exc()
        row.seconds = time.perf_counter() - start
    return rows


def summary(rows: list[Row]) -> str:
    lines = []
    for label in ("forward", "gradient"):
        some = [r for r in rows if r.target == label and r.points]
        counts = "   ".join(f"{m} {sum(r.good(m) for r in some)}" for m in METHODS)
        lines.append(f"{label}: within {GOOD:g} ulp and clean, of {len(some)}:   {counts}")
    seconds = sorted(r.seconds for r in rows if r.points)
    if seconds:
        lines.append(f"a search takes {seconds[len(seconds) // 2]:.1f} s (median), {seconds[-1]:.1f} s (worst)")
    if crashed := sum(bool(r.error) for r in rows):
        lines.append(f"{crashed} searches failed with an error")
    return "\n".join(lines)


def line(row: Row) -> str:
    cells = [str(row.methods.get(m, "-")) for m in METHODS]
    mark = "  " if row.good("found") else "no" if row.points else "--"
    detail = f"{row.points:6} {row.seconds:6.1f}s {row.nodes:5}"
    undecided = f"  undecided {row.undecided}" if row.undecided else ""
    error = "  " + row.error.strip().splitlines()[-1][:90] if row.error else ""
    wide = " ".join(f"{cell[:16]:>16}" for cell in cells)
    return f"{mark} {row.name[:38]:38} {row.target:8} {wide} {detail}{undecided}{error}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--wide", choices=("never", "where-needed", "always"), default="where-needed")
    parser.add_argument(
        "--only", default="", help="formulas whose name or file contains one of these texts, separated by commas"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="measure every N-th formula")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--points", type=int, default=4000, help="number of points of each kind")
    parser.add_argument("--seed", type=int, default=20260731)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found, left_out = cores(options.folders)
    reasons = ", ".join(f"{count} {reason}" for reason, count in Counter(left_out).most_common())
    print(f"{len(found)} formulas; left out: {reasons or 'none'}")
    words = options.only.lower().split(",")
    chosen = [c for c in found if any(w in f"{c.name} {c.file}".lower() for w in words)]
    chosen = chosen[:: options.every][: options.limit]
    print(f"   {'':38} {'':8} {' '.join(f'{m:>16}' for m in METHODS)} points   time nodes")
    rows: list[Row] = []
    try:
        for number, core in enumerate(chosen, 1):
            if sys.stderr.isatty():
                print(f"\r{number}/{len(chosen)} {core.name[:60]:60}", end="\r", file=sys.stderr, flush=True)
            made = rows_of(core, options.wide, options.seed, options.points)
            rows += made
            print(*map(line, made), sep="\n", flush=True)
            if options.json:
                written = [{**asdict(r), "good": {m: r.good(m) for m in METHODS}} for r in rows]
                options.json.write_text(json.dumps(written, indent=1))
    except KeyboardInterrupt:
        print("interrupted")
    print(summary(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
