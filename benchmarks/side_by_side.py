"""Shared parts of the benchmarks of kernels: options, timing of alternating calls, and tables in Markdown."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.benchmark import Measurement, Timer

from pullback.node import calls as node

MARK = "<!-- benchmarks/{}: {} -->"
ROUNDS, QUICK_ROUNDS = 11, 3
SLICE, QUICK_SLICE = 0.02, 0.002
"""Seconds of one peer's turn, where a call does not take longer."""


def parsed(doc: str, arguments: Callable[[argparse.ArgumentParser], None] | None = None) -> argparse.Namespace:
    """Return the options, and set the number of threads; `arguments` adds those of one script."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, choices=(1, 2), default=1)
    parser.add_argument(
        "--quick", action="store_true", help="run a few small cases to test the script; the figures are meaningless"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path, help="write the table between the markers of this page")
    if arguments is not None:
        arguments(parser)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here")
    torch.set_num_threads(options.threads)
    _settle_allocator()
    return options


def _settle_allocator() -> None:
    """Free a large block once, as any longer program does: glibc then keeps twice as much memory for all peers.

    Before that, some steps return memory of some MiB to the system and map it again, whichever peer runs.
    """
    torch.zeros(31 << 20, dtype=torch.uint8)


def with_caches_of_its_own() -> tempfile.TemporaryDirectory[str]:
    """Use empty caches of Pullback and PyTorch: what a user has cached (stable forms) must not change a figure."""
    folder = tempfile.TemporaryDirectory(prefix="pullback-benchmark-")
    os.environ["PULLBACK_CACHE_DIR"] = str(Path(folder.name, "pullback"))
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder.name, "inductor"))
    node.wait()  # otherwise it is compiled beside what is measured
    return folder


def medians(calls: Mapping[str, Callable[[], object]], options: argparse.Namespace) -> dict[str, float]:
    """Return the median seconds of calls that alternate, so that a disturbance affects all of them."""
    timers = {
        name: Timer("call()", globals={"call": call}, num_threads=options.threads) for name, call in calls.items()
    }
    turn = QUICK_SLICE if options.quick else SLICE
    numbers = {name: max(1, int(turn / timer.timeit(2).mean)) for name, timer in timers.items()}
    taken: dict[str, list[Measurement]] = {name: [] for name in timers}
    for _ in range(QUICK_ROUNDS if options.quick else ROUNDS):
        for name, timer in timers.items():
            taken[name].append(timer.timeit(numbers[name]))
    return {name: Measurement.merge(measured)[0].median for name, measured in taken.items()}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; all columns but the first are figures."""
    lines = [head, ["--", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ratio(a: float | None, b: float | None) -> str:
    """Return a over b as text; a dash where one is missing."""
    if a is None or not b:
        return "–"
    return f"{a / b:.2f}" if a / b < 10 else f"{a / b:.0f}"


def machine(options: argparse.Namespace) -> str:
    """Describe the machine that figures depend on, in one line."""
    where = f"{torch.backends.cpu.get_cpu_capability()}, {options.threads} thread{'s' * (options.threads > 1)}"
    if options.device == "cuda":
        where = torch.cuda.get_device_name()
    return f"PyTorch {torch.__version__.split('+')[0]}, {where}" + (" (--quick: no figures)" if options.quick else "")


def publish(script: str, options: argparse.Namespace, shown: str, found: Any) -> None:
    """Print a table; write it and its figures to the files of the options.

    Raises:
        SystemExit: if figures of `--quick` are to go into a page.
    """
    shown = f"Measured with {machine(options)}.\n\n{shown}"
    print(shown)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(options), "found": found}, indent=1))
    if options.write:
        if options.quick:
            raise SystemExit("--quick gives no figures: they are not written")
        place(options.write, Path(script).name, shown)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table."""
    table = Table(*headings, box=None, header_style="bold")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)


def in_markdown(headings: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[str]) -> list[str]:
    """Return the lines of a table in Markdown; the columns with `words` as headings are set to the left."""
    marks = ["--" if heading in words else "--:" for heading in headings]
    return [f"| {' | '.join(row)} |" for row in (headings, marks, *rows)]


def place(page: Path, name: str, shown: str) -> None:
    """Write a text between the markers of a page that have a name."""
    begin, end = MARK.format(name, "begin"), MARK.format(name, "end")
    before, rest = page.read_text(encoding="utf-8").split(begin)
    page.write_text(f"{before}{begin}\n{shown}\n{end}{rest.split(end)[1]}", encoding="utf-8")
