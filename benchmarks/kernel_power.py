"""Number of planted faults of Triton kernels that `pullback.check` finds without a GPU.

Runs the right Functions of `tests/check/triton_functions` and their mutants through `pullback.check(function, *inputs)`
with one small example each, as a user would. A finding of severity error kills a mutant; on a right Function it is a
false alarm. A mutant that only rounds worse is killed by the warning that says so, PB907. Mutants that are wrong
forward and backward alike are given the formula as well, as `reference=`.

    python benchmarks/kernel_power.py [--only TEXT] [--right] [--budget S] [--device cuda] [--share K/N] [--json FILE]

On a GPU, if one is named, the kernels are compiled, and the examples have float32.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from kernel_audits import moved
from tests.check.triton_functions.mutants import MUTANTS, Mutant, function_of, load, load_right, right_names

import pullback
from pullback import interpreter


@dataclass
class Row:
    """The verdict on one Function.

    Attributes:
        name: the right Function, or the mutant.
        shows: what it takes to see the fault; "" for a right Function.
        errors, warnings: rules with such a finding.
        messages: of the errors.
        seconds: duration.
    """

    name: str
    shows: str
    errors: list[str]
    warnings: list[str]
    messages: list[str]
    seconds: float

    @property
    def is_killed(self) -> bool:
        """Whether the audit finds the mutant."""
        return bool(self.errors) or (self.shows == "rounding" and "PB907" in self.warnings)


def judged(name: str, shows: str, module: ModuleType, with_reference: bool, options: argparse.Namespace) -> Row:
    """Audit the Function of a module with its example."""
    args = [x.detach() if isinstance(x, torch.Tensor) else x for x in module.example()]
    if options.device != "cpu":
        args = [moved(x, options.device) if isinstance(x, torch.Tensor) else x for x in args]
    more = {"reference": module.reference} if with_reference else {}
    start = time.perf_counter()
    report = pullback.check(function_of(module), *args, budget=options.budget, **more)
    seconds = time.perf_counter() - start
    by = {s: sorted({f.rule for f in report.findings if f.severity == s}) for s in ("error", "warning")}
    messages = [f"{f.rule}: {f.message}" for f in report.findings if f.severity == "error"]
    return Row(name, shows, by["error"], by["warning"], messages, round(seconds, 1))


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the verdict on each right Function and each mutant that is asked for."""
    part, parts = map(int, options.share.split("/"))
    for name in list(right_names())[part - 1 :: parts]:
        if options.only in name:
            yield judged(name, "", load_right(name), True, options)
    if options.right:
        return
    with tempfile.TemporaryDirectory() as folder:
        for mutant in MUTANTS[part - 1 :: parts]:
            if options.only in mutant.name:
                module = load(mutant, Path(folder))
                yield judged(mutant.name, shown_by(mutant), module, mutant.needs_reference, options)


def shown_by(mutant: Mutant) -> str:
    """Return what it takes to see a mutant."""
    return "reference" if mutant.needs_reference else mutant.shows


def main() -> int:
    """Print a line for each Function, and the totals; return 1 if a right one is accused."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="those with this in their name")
    parser.add_argument("--right", action="store_true", help="the right Functions alone")
    parser.add_argument("--budget", type=float, default=10.0, metavar="S", help="of each audit (10)")
    parser.add_argument("--device", default="cpu", help="where the examples are (cpu: the kernels are interpreted)")
    parser.add_argument("--share", default="1/1", metavar="K/N", help="a part of the Functions and of the mutants")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.device == "cpu":
        interpreter.enter()
    found = []
    for row in rows(options):
        found.append(row)
        mark = "     " if not row.shows else "found" if row.is_killed else "LIVES"
        rules = f"{' '.join(row.errors)} ({' '.join(row.warnings)})"
        print(f"{mark} {row.seconds:6.1f} s  {row.name:45} {row.shows:10} {rules}", flush=True)
        if not row.shows:
            print(*row.messages, sep="\n", end="\n" * bool(row.messages), flush=True)
    accused = [row for row in found if not row.shows and row.errors]
    for shows in sorted({row.shows for row in found if row.shows}):
        of_kind = [row for row in found if row.shows == shows]
        print(f"{shows:10} {sum(row.is_killed for row in of_kind):4} of {len(of_kind)}")
    mutants = [row for row in found if row.shows]
    dead = sum(row.is_killed for row in mutants)
    print(f"{dead} of {len(mutants)} mutants found, {len(accused)} right Functions accused")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in found], indent=1), encoding="utf-8")
    return bool(accused)


if __name__ == "__main__":
    sys.exit(main())
