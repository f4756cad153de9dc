"""Audits of past faults of Triton kernels, before and after the commit that fixes each, without a GPU.

For each fault of `kernel_faults.py`, makes the tree before the commit, and the commit's own, in a temporary folder, and
audits the Function in both by `pullback.check`: with a natural call; if that does not find the fault before the commit,
with a reference in plain PyTorch; if that does not either, with the call of the commit's own test. Prints a table: what
finds the fault; the errors on the fixed tree that a program or a later commit confirms; and the others, which count as
false positives.

    python benchmarks/kernel_replay.py [--history LIGER=PATH] [--history FLA=PATH] [--only TEXT,…] [--lines FILE]
        [--write docs/kernels_in_the_wild.md]

A history that is not given is cloned from GitHub. With `--lines` each audit adds a line to a file, and those that it
holds already are not run again. Imports and runs code of the packages, as a test runner does. Needs git, Triton,
and for flash-linear-attention a network.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from in_the_wild import installed
from kernel_audits import Row, audited
from kernel_calls import Make
from kernel_faults import FAULTS, KNOWN, LEFT_OUT, Fault
from side_by_side import in_markdown, place, print_table
from wild_packages import Package

from pullback import interpreter

_ADDRESSES = {
    "LIGER": "https://github.com/linkedin/Liger-Kernel", "FLA": "https://github.com/fla-org/flash-linear-attention",
}  # fmt: skip
_FOLDERS = {"LIGER": "src/liger_kernel", "FLA": "fla"}
_NEEDS: Mapping[str, tuple[Package, ...]] = {"LIGER": (), "FLA": (Package("einops", "0.8.2", "", ()),)}
_MODULES = {"LIGER": "liger_kernel.ops.", "FLA": "fla."}
_EMPTIED = ("fla/__init__.py", "fla/layers/__init__.py", "fla/models/__init__.py")
"""Files that import the package transformers, which no kernel needs."""
_SIDES = ("before", "after")
_HOW = {"natural": "found", "reference": "with a reference", "telling": "with the call of the commit's test"}

Rows = dict[tuple[str, str, str], Row]
"""Audits by fault, kind of call, and side of the commit."""


def main() -> int:
    options = _options()
    if options.within:
        print(json.dumps(asdict(_audit(*options.within, options.budget))))
        return 0
    wanted = [f for f in FAULTS if not options.only or any(text in f.name for text in options.only.split(","))]
    rows: Rows = dict(_read(options.lines)) if options.lines else {}
    with ExitStack() as stack:
        given = dict(each.split("=", 1) for each in options.history)
        histories: dict[str, str] = {}
        needed: dict[str, list[str]] = {}
        for fault in wanted:
            for kind, side in _todo(fault, rows):
                if fault.package not in histories:
                    histories[fault.package] = given.get(fault.package) or stack.enter_context(_cloned(fault.package))
                    needed[fault.package] = [stack.enter_context(installed(p)) for p in _NEEDS[fault.package]]
                rows[fault.name, kind, side] = row = _row(
                    fault, kind, side, histories[fault.package], needed[fault.package], options
                )
                print(f"{fault.name} {kind} {side}: {row.with_call}, {row.seconds} s", file=sys.stderr, flush=True)
                if options.lines:
                    with options.lines.open("a") as file:
                        file.write(json.dumps([[fault.name, kind, side], asdict(row)]) + "\n")
    _print(wanted, rows)
    if options.write:
        place(options.write, "kernel_replay.py", _markdown(wanted, rows))
    return 0


def _todo(fault: Fault, rows: Mapping[tuple[str, str, str], Row]) -> Iterator[tuple[str, str]]:
    """Yield the audits of a fault that are to be run, by kind of call and side; what is found needs no further call."""
    for kind in fault.calls:
        for side in _SIDES:
            if (fault.name, kind, side) not in rows:
                yield kind, side
        if _shown(fault, rows[fault.name, kind, "before"]):
            return


def _row(fault: Fault, kind: str, side: str, history: str, needed: Sequence[str], options: Any) -> Row:
    """Audit one side of a commit, in a process of its own."""
    with _tree(fault, side, history) as folder:
        command = [sys.executable, __file__, "--within", fault.name, kind, "--budget", str(options.budget)]
        path = os.pathsep.join([folder, *needed, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False, timeout=options.limit
            )
        except subprocess.TimeoutExpired:
            return Row(fault.name, f"over {options.limit:.0f} s", seconds=options.limit)
    if done.returncode:
        return Row(fault.name, f"fails: {done.stderr.strip().splitlines()[-1][:200] if done.stderr else ''}")
    return Row(**json.loads(done.stdout.splitlines()[-1]))


@contextmanager
def _tree(fault: Fault, side: str, history: str) -> Iterator[str]:
    """Write a package as it was into a temporary folder, and yield the folder to import it from."""
    commit = fault.commit + ("^" if side == "before" else "")
    package = _FOLDERS[fault.package]
    with tempfile.TemporaryDirectory(prefix="pullback-replay-") as folder:
        archive = subprocess.run(["git", "-C", history, "archive", commit, package], check=True, capture_output=True)
        subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
        for name in _EMPTIED:
            if (file := Path(folder, name)).exists():
                file.write_text('__version__ = "0"\n')
        yield str(Path(folder, package).parent)


@contextmanager
def _cloned(package: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="pullback-history-") as folder:
        subprocess.run(["git", "clone", "--quiet", "--bare", _ADDRESSES[package], folder], check=True)
        yield folder


def _read(lines: Path) -> Iterator[tuple[tuple[str, str, str], Row]]:
    for line in lines.read_text().splitlines() if lines.exists() else ():
        (name, kind, side), row = json.loads(line)
        yield (name, kind, side), Row(**row)


# ---- within the process of a tree -----------------------------------------------------------------------------------


def _audit(name: str, kind: str, budget: float) -> Row:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    interpreter.enter()
    torch.hip = types.SimpleNamespace(is_available=lambda: False)  # type: ignore[attr-defined]  # asked without a GPU
    (fault,) = (f for f in FAULTS if f.name == name)
    module, _, function = fault.function.partition(":")
    target = getattr(importlib.import_module(_MODULES[fault.package] + module), function)
    reference = fault.reference if kind == "reference" else None
    return audited(name, target, _past(target, fault.calls[kind]), budget, reference)


def _past(target: Any, make: Make) -> Make:
    """Return arguments without those that the function did not have, and `None` for those that have no default."""

    def made() -> tuple[Any, ...] | dict[str, Any]:
        found = make()
        if isinstance(found, tuple):
            return found
        parameters = inspect.signature(inspect.unwrap(getattr(target, "forward", target))).parameters.values()
        lacking = {p.name: None for p in parameters if p.default is p.empty and p.name not in ("ctx", "self")}
        return lacking | {p.name: found[p.name] for p in parameters if p.name in found}

    return made


# ---- tables ---------------------------------------------------------------------------------------------------------

_HEADINGS = ("commit", "Function", "what was wrong", "before", "after", "seconds")


def _shown(fault: Fault, row: Row) -> list[str]:
    """Return the rules of findings that are the fault."""
    told = [message.partition(" ")[2] for message in row.messages]
    return sorted({message[:5] for message in told if re.match(fault.sign, message)})


def _cells(fault: Fault, rows: Mapping[tuple[str, str, str], Row]) -> list[str]:
    run = [row for (name, _, _), row in rows.items() if name == fault.name]
    seconds = max((row.seconds for row in run), default=0)
    function = f"`{fault.function.rpartition(':')[2]}`"
    before, after = _before(fault, rows), _after(fault, rows)
    return [f"{fault.package} {fault.commit}", function, fault.wrong, before, after, f"{seconds:.0f}"]


def _before(fault: Fault, rows: Mapping[tuple[str, str, str], Row]) -> str:
    for kind in fault.calls:
        if (row := rows.get((fault.name, kind, "before"))) and (rules := _shown(fault, row)):
            return f"{_HOW[kind]}: {', '.join(rules)}"
    failed = [row.with_call for (name, _, side), row in rows.items() if (name, side) == (fault.name, "before")]
    return "missed" + "".join(f", {status}" for status in failed if status.startswith(("fails", "over")))


def _after(fault: Fault, rows: Mapping[tuple[str, str, str], Row]) -> str:
    run = [row for (name, _, side), row in rows.items() if (name, side) == (fault.name, "after")]
    errors = [message.partition(" ")[2] for row in run for message in row.messages if message.startswith("error")]
    false = {error[:5] for error in errors if not any(re.match(known, error) for known in (*fault.known, *KNOWN))}
    true = {error[:5] for error in errors if any(re.match(known, error) for known in fault.known)} - false
    told = [f"false positive: {', '.join(sorted(false))}"] if false else []
    told += [f"confirmed: {', '.join(sorted(true))}"] if true else []
    told += [row.with_call for row in run if row.with_call.startswith(("fails", "over"))]
    return "; ".join(told) or "–"


def _totals(faults: Sequence[Fault], rows: Mapping[tuple[str, str, str], Row]) -> str:
    before = [_before(fault, rows).partition(":")[0].partition(",")[0] for fault in faults]
    counts = [f"{before.count(how)} {how}" for how in (*_HOW.values(), "missed")]
    run = {fault.name for fault in faults if any(key[0] == fault.name and key[2] == "after" for key in rows)}
    accused = sum("false positive" in _after(fault, rows) for fault in faults)
    return f"{len(faults)} faults: {', '.join(counts)}. False positives: on {accused} of {len(run)} trees."


def _print(faults: Sequence[Fault], rows: Mapping[tuple[str, str, str], Row]) -> None:
    print_table(_HEADINGS, [_cells(fault, rows) for fault in faults])
    print(_totals(faults, rows))


def _markdown(faults: Sequence[Fault], rows: Mapping[tuple[str, str, str], Row]) -> str:
    lines = in_markdown(_HEADINGS, [_cells(fault, rows) for fault in faults], words=_HEADINGS[:-1])
    left = [f"- {commits}: {why}" for commits, why in LEFT_OUT.items()]
    return "\n".join([*lines, "", _totals(faults, rows), "", "Left out:", "", *left])


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--history", action="append", default=[], metavar="NAME=PATH", help="a repository, LIGER or FLA"
    )
    parser.add_argument("--only", help="only faults with one of these texts in package, commit and name")
    parser.add_argument("--budget", type=float, default=20.0, metavar="S", help="of each audit (20)")
    parser.add_argument("--limit", type=float, default=300.0, metavar="S", help="after which an audit is ended (300)")
    parser.add_argument("--lines", type=Path, metavar="FILE", help="keep each audit in this file, and resume from it")
    parser.add_argument("--write", type=Path, help="update the table of this page")
    parser.add_argument("--within", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
