"""Audits of the Functions with Triton kernels of published packages, without a GPU.

Installs each package into a temporary folder, if it is not on the path, and audits each Function that can be imported
twice: by `pullback.check`, with the call of `kernel_calls.py`, and by the command line, without a call. Prints a table
of each package: the number of Functions; of those that have a call, and of these audited; of those audited without one;
the Functions with an error and a warning, by rule, where a call is given; and the median duration of these audits.

    python benchmarks/kernel_audits.py [--only NAME,…] [--lines FILE] [--write docs/kernels_in_the_wild.md]
    python benchmarks/kernel_audits.py --within NAME --device cuda [--share 1/4]
    python benchmarks/kernel_audits.py --programs docs/kernels_in_the_wild.md

The second form audits a package that is on the path, with the calls, and prints a line of JSON for each Function; on a
GPU, if one is named, in float32. The third runs the programs of the page, and writes what each prints below it. With
`--lines`, the audits of each package are kept in a file as they end, and not made again. Imports and runs code of the
packages, as a test runner does. Needs a network, and Triton.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import kernel_calls
import torch
from kernels_in_the_wild import CALLS, PACKAGES, functions, provided, wanted
from side_by_side import in_markdown, place, print_table
from wild_packages import Package

import pullback
from pullback import interpreter
from pullback.report.report import Report

_PROGRAM = re.compile(r"```python\n(.*?)```\n\n```text\n.*?```\n", re.DOTALL)


@dataclass(frozen=True)
class Row:
    """The audit of a Function.

    Attributes:
        function: module and class.
        with_call: the status of its audit with the call of the table; "" without a call.
        alone: the status of its audit by the command line; "" if it was not asked for.
        errors, warnings: rules with such a finding, with the call.
        messages: of these findings.
        seconds: duration of the audit with the call.
    """

    function: str
    with_call: str = ""
    alone: str = ""
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    seconds: float = 0.0


def main() -> int:
    options = _options()
    if options.within:
        for row in _with_calls(options):
            print(json.dumps(asdict(row)), flush=True)
        return 0
    packages = wanted(options.only)
    with ExitStack() as stack:
        folders = {package.name: stack.enter_context(provided(package)) for package in packages}
        if options.programs:
            return _run_programs(options.programs, list(folders.values()))
        found = {p.requirement: _of_package(p, folders[p.name], options) for p in packages}
    cells = [_cells(name, rows) for name, rows in found.items()]
    print_table(_HEADINGS, cells)
    if options.write:
        place(
            options.write,
            "kernel_audits.py",
            "\n".join(in_markdown(_HEADINGS, cells, words=("package", "errors", "warnings"))),
        )
    return 0


def _of_package(package: Package, folder: str, options: Any) -> list[Row]:
    """Return the rows of a package; those that the file of lines has are not measured again."""
    print(f"{package.requirement} ...", file=sys.stderr, flush=True)
    known = _known(options.lines, package.requirement)
    if "calls" not in known:
        command = [sys.executable, __file__, "--within", package.name, "--budget", str(options.budget)]
        lines = _output(command, [folder], "the audits failed").splitlines()
        known["calls"] = [json.loads(line) for line in lines if line.startswith("{")]
        _keep(options.lines, package.requirement, "calls", known["calls"])
    if "alone" not in known:
        known["alone"] = {} if options.no_unaided else _alone(package, folder)
        _keep(options.lines, package.requirement, "alone", known["alone"])
    by_name = {row["function"]: row for row in known["calls"]}
    return [Row(**{**row, "alone": known["alone"].get(name, "")}) for name, row in by_name.items()]


def _known(lines: Path | None, package: str) -> dict[str, Any]:
    """Return what a file has of a package: audits with its "calls" and "alone"."""
    if lines is None or not lines.exists():
        return {}
    each = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    return {line["part"]: line["found"] for line in each if line["package"] == package}


def _keep(lines: Path | None, package: str, part: str, found: Any) -> None:
    if lines is not None:
        with lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"package": package, "part": part, "found": found}) + "\n")


def _alone(package: Package, folder: str) -> dict[str, str]:
    """Return the status of each Function in an audit of the package by the command line."""
    command = [sys.executable, "-m", "pullback", "check", *package.targets, "-q", "--format", "json"]
    command += ["--select", "PB0,PB1", "--fail-on", "never"]  # what is counted is whether it runs
    report = Report.from_dict(json.loads(_output(command, [folder], "the audit could not be run")))
    return {
        f"{_module(subject.location.file, folder)}:{subject.name.rpartition('.')[2]}": subject.status
        for subject in report.subjects
    }


def _module(file: str, folder: str) -> str:
    path = file.removeprefix(folder).strip("/")
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def _output(command: Sequence[str], folders: Sequence[str], failure: str) -> str:
    path = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as here:  # a package may write where it runs
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=here)
    if done.returncode:
        raise SystemExit(f"{failure}: {done.stderr[-2000:]}")
    return done.stdout


def _run_programs(page: Path, folders: Sequence[str]) -> int:
    """Run the programs of a page, and write what they print into it."""

    def ran(match: re.Match[str]) -> str:
        try:
            output = _output([sys.executable, "-c", match[1]], folders, f"a program of {page} fails")
        except SystemExit as error:
            if not any(lack in str(error) for lack in ("ModuleNotFoundError", "FileNotFoundError")):
                raise
            print(f"left as it is: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
            return match[0]
        return f"```python\n{match[1]}```\n\n```text\n{output.strip()}\n```\n"

    page.write_text(_PROGRAM.sub(ran, page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


# ---- within the process of a package --------------------------------------------------------------------------------


def _with_calls(options: Any) -> Iterator[Row]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.device == "cpu":
        interpreter.enter()
    calls = CALLS[options.within]
    (package,) = (p for p in PACKAGES if p.name == options.within)
    part, parts = map(int, options.share.split("/"))
    for function, cls in sorted(functions(package).items())[part - 1 :: parts]:
        if function in calls:
            yield audited(function, cls, calls[function], options.budget, device=options.device)
        elif kernel_calls.SKIPPED.get(function) is None:
            yield Row(function)


def audited(
    function: str, cls: Any, make: kernel_calls.Make, budget: float, reference: Any = None, device: str = "cpu"
) -> Row:
    """Audit a Function or a callable, with the arguments of a call; on a GPU in float32."""
    args = [x.detach() if isinstance(x, torch.Tensor) else x for x in kernel_calls.arguments(cls, make)]
    if device != "cpu":
        args = [moved(x, device) if isinstance(x, torch.Tensor) else x for x in args]
    start = time.perf_counter()
    report = pullback.check(cls, *args, budget=budget, reference=reference)
    seconds = time.perf_counter() - start
    told = [f for f in report.findings if f.severity != "info"]
    by = {severity: sorted({f.rule for f in told if f.severity == severity}) for severity in ("error", "warning")}
    messages = [f"{f.severity} {f.rule}: {f.message}" for f in told]
    return Row(function, report.subjects[0].status, "", by["error"], by["warning"], messages, round(seconds, 1))


def moved(x: torch.Tensor, device: str) -> torch.Tensor:
    """Return a tensor on a device; of float64, in float32."""
    return x.to(device, torch.float32 if x.dtype == torch.float64 else x.dtype)


# ---- tables ---------------------------------------------------------------------------------------------------------

_HEADINGS = ("package", "Functions", "with a call", "of these audited", "without", "errors", "warnings", "seconds")


def _cells(name: str, rows: Sequence[Row]) -> list[str]:
    called = [row for row in rows if row.with_call]
    audited = sum(row.with_call != "unaudited" for row in called)
    alone = sum(row.alone not in ("", "unaudited") for row in rows)
    median = statistics.median(row.seconds for row in called) if called else 0.0
    told = [", ".join(_counts(getattr(row, kind) for row in called)) or "–" for kind in ("errors", "warnings")]
    return [name, str(len(rows)), str(len(called)), str(audited), str(alone), *told, f"{median:.0f}"]


def _counts(rules: Any) -> Iterator[str]:
    for rule, count in sorted(Counter(rule for each in rules for rule in each).items()):
        yield rule if count == 1 else f"{rule} ×{count}"


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="only these packages, separated by commas")
    parser.add_argument("--budget", type=float, default=10.0, metavar="S", help="of each audit with a call (10)")
    parser.add_argument("--no-unaided", action="store_true", help="only the audits with a call")
    parser.add_argument("--lines", type=Path, metavar="FILE", help="keep what is measured here, and resume from it")
    parser.add_argument("--write", type=Path, help="update the table of this page")
    parser.add_argument("--programs", type=Path, metavar="PAGE", help="run the programs of this page")
    parser.add_argument("--within", metavar="NAME", help="audit this package, which is on the path, in this process")
    parser.add_argument("--device", default="cpu", help="of the audits within a process (cpu: kernels are interpreted)")
    parser.add_argument("--share", default="1/1", metavar="K/N", help="a part of the Functions, within a process")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
