"""Time of an op, forward and backward, and of its peers, by size.

    python benchmarks/kernels.py --wide [--threads 1|2] [--device cpu|cuda] [--json FILE] [--write docs/performance.md]
    python benchmarks/kernels.py --plot docs/performance.svg --from FILE

Medians of alternating runs in one process, in float32. For each formula: the op as `pullback.function` makes it (*op*;
its stable forms may compute in float64), the op fused as written (*written*: `stable=False, backend="native"`), with
searched forms (*wide*: `--wide`), the formula under eager autograd, a hand-written Function, warm `torch.compile` of
the formula, `torch.sigmoid` of the same size, and a copy of the bytes that have to be moved. The compiled functions are
also timed alone, on allocated outputs: the difference to a round trip is overhead.

On the CPU the largest size is measured twice: by default, where only Pullback's kernels request large pages, and in a
process with `THP_MEM_ALLOC_ENABLE=1`, where PyTorch's allocator requests them for every peer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch
from formulas import CASES, Case
from peers import calls_of, kernels_alone, ops_of, sigmoid_alone
from side_by_side import medians, parsed, publish, ratio, table, with_caches_of_its_own

SIZES, QUICK_SIZES = (8, 2**16, 2**20, 2**24), (8, 2**12)
Row = dict[str, Any]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wide", action="store_true", help="also measure stable forms from a search (needs python-flint)"
    )
    parser.add_argument("--only", help="measure only formulas whose name contains this text")
    parser.add_argument("--plot", type=Path, help="plot time over size into this file (needs matplotlib)")
    parser.add_argument(
        "--large-pages", action="store_true", help="measure only the largest size, with large pages for all peers"
    )
    parser.add_argument("--from", dest="taken", type=Path, help="read the figures from an earlier --json file")


def measured(case: Case, options: argparse.Namespace) -> list[Row]:
    """Measure one formula at every size."""
    ops = ops_of(case, options.wide)
    rows = []
    sizes = QUICK_SIZES if options.quick else SIZES
    for n in sizes[-1:] if options.large_pages else sizes:
        inputs = case.inputs(n, options.device)
        calls = calls_of(case, ops, inputs, compiled=not options.quick)
        with torch.no_grad():
            g = torch.ones_like(case.eager(*inputs))
        for name, op in ops.items():
            if (alone := kernels_alone(op, inputs, g)) is not None:
                calls[f"{name} alone"] = alone
        calls["sigmoid alone"] = sigmoid_alone(n, options.device)
        seconds = medians(calls, options)
        row = {"formula": case.label, "one_input": case.is_one_input, "n": n, "large_pages": options.large_pages}
        rows.append({**row, "seconds": seconds})
        print(f"{case.label}, n = {size(rows[-1])}: {ratio(seconds['op'], seconds['sigmoid'])}", file=sys.stderr)
    return rows


def with_large_pages() -> list[Row]:
    """Measure the largest size in another process, whose allocator requests large pages: an option read at start."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "found.json")
        run = [sys.executable, *sys.argv, "--large-pages", "--json", str(path)]  # the last --json holds
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"THP_MEM_ALLOC_ENABLE": "1"})
        rows: list[Row] = json.loads(path.read_text())["found"]
        return rows


def size(row: Row) -> str:
    """Describe the size of a row."""
    n = row["n"]
    return (str(n) if n < SMALL else f"2^{n.bit_length() - 1}") + ", large pages for all" * row["large_pages"]


BARS = [  # what, over what, and of each n the floor and the goal
    ("op", "sigmoid", {8: (2.0, 1.3), 2**16: (1.8, 1.4), 2**20: (1.5, 1.2), 2**24: (1.3, 1.05)}),
    ("written", "sigmoid", {8: (2.0, 1.3), 2**16: (1.8, 1.4), 2**20: (1.5, 1.2), 2**24: (1.3, 1.05)}),
    ("op", "compile", dict.fromkeys(SIZES, (1.0, 0.7))),
    ("written", "compile", dict.fromkeys(SIZES, (1.0, 0.7))),
    ("op", "eager", dict.fromkeys(SIZES[1:], (0.5, 0.25))),
    ("written", "eager", dict.fromkeys(SIZES[1:], (0.5, 0.25))),
    ("wide", "eager", dict.fromkeys(SIZES[1:], (None, 1.0))),
    ("op", "hand", {}),
    ("op", "copy", {}),
    ("written", "copy", {}),
    ("overhead", "sigmoid's", dict.fromkeys(SIZES[:1], (1.3, 1.1))),
]
SMALL = 1024
"""Size from which memory is the limit, so that a copy is a meaningful peer; below it, overhead is."""


def figure(row: Row, what: str, over: str) -> float | None:
    """Return one ratio of a row, if both were measured."""
    seconds, is_small = row["seconds"], row["n"] < SMALL
    if (over == "copy" and is_small) or (what == "overhead" and not is_small):
        return None
    if what == "overhead":
        parts = [seconds.get(name) for name in ("op", "op alone", "sigmoid", "sigmoid alone")]
        if None in parts or parts[2] <= parts[3]:
            return None
        return (parts[0] - parts[1]) / (parts[2] - parts[3])
    return seconds[what] / seconds[over] if what in seconds and over in seconds else None


def summary(rows: list[Row]) -> str:
    """Return the figures that have floors and goals: median and worst of the formulas."""
    sizes = {size(row): row["n"] for row in rows}
    lines = []
    for what, over, bars in BARS:
        one_input = over.startswith("sigmoid")
        cells = []
        for name, n in sizes.items():
            of = [row for row in rows if size(row) == name and (row["one_input"] or not one_input)]
            found = [f for row in of if (f := figure(row, what, over)) is not None]
            text = f"{median(found):.2f}, {max(found):.2f}" if found else "–"
            floor, goal = bars.get(n, (None, None))
            limits = "; ".join(str(b) for b in (floor, goal) if b is not None)
            cells.append(f"{text} ({limits})" if found and limits else text)
        if any(cell != "–" for cell in cells):
            lines.append([f"{what} / {over}" + (", one input" if one_input else ""), *cells])
    head = ["median, worst (floor; goal)", *(f"n = {name}" for name in sizes)]
    return table(head, lines)


PEERS = (
    ("op", "sigmoid"), ("written", "sigmoid"), ("op", "compile"), ("op", "eager"), ("written", "eager"),
    ("op", "hand"), ("op", "copy"), ("overhead", "sigmoid's"), ("wide", "eager"),
)  # fmt: skip


def details(rows: list[Row]) -> str:
    """Return every formula's ratios."""
    shown = [p for p in PEERS if any(figure(row, *p) is not None for row in rows)]
    lines = []
    for row in rows:
        cells = ["–" if (f := figure(row, *p)) is None else ratio(f, 1) for p in shown]
        kernels = row["seconds"].get("written alone"), row["seconds"]["sigmoid alone"]
        lines.append([f"{row['formula']}, {size(row)}", *cells, ratio(*kernels)])
    return table(["", *(f"{what} / {over}" for what, over in shown), "written alone / sigmoid's"], lines)


def main() -> None:
    options = parsed(__doc__, arguments)
    with with_caches_of_its_own():
        if options.taken:
            rows = json.loads(options.taken.read_text())["found"]
        else:
            cases = [case for case in CASES if not options.only or options.only in case.label]
            cases = cases[:: len(cases) - 1 or 1] if options.quick else cases  # the first and the last
            rows = [row for case in cases for row in measured(case, options)]
            if options.large_pages:
                options.plot = options.write = None  # that is left to who started this process
            else:
                labels = [case.label for case in cases]
                rows += with_large_pages() if options.device == "cpu" else []
                rows.sort(key=lambda row: labels.index(row["formula"]))
        if options.plot:
            from kernels_plot import draw

            draw(rows, options.plot)
        if not options.taken or options.write:
            publish(__file__, options, f"{summary(rows)}\n\n{details(rows)}", rows)


if __name__ == "__main__":
    main()
