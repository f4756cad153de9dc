"""Findings of an audit of published packages.

Installs each package of `wild_packages.py`, at the version given there, into a temporary folder, audits every custom
function in it by the command line, and prints a table: the number of functions, the number that ran with generated
examples, the findings by rule, and the duration. All known errors were checked by hand and are listed in
docs/in_the_wild.md. An error that is not listed there is new, and the exit status is 1.

    python benchmarks/in_the_wild.py [--only NAME,…] [--json FILE] [--write docs/in_the_wild.md]

Imports and runs code of the packages, as a test runner does. Needs a network.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from side_by_side import place
from wild_packages import PACKAGES, Package

from pullback.report.report import Report

PAGE = Path(__file__).resolve().parents[1] / "docs" / "in_the_wild.md"
BUDGET = "15"
"""Time limit of a function in seconds."""


@dataclass(frozen=True)
class Row:
    """Result of the audit of a package.

    Attributes:
        subjects: custom functions in it.
        audited: number of functions that ran.
        errors, warnings: number of functions with a finding, by rule.
        findings: each error, as rule and function.
        seconds: duration of the command.
    """

    package: str
    field: str
    subjects: int
    audited: int
    errors: dict[str, int]
    warnings: dict[str, int]
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0


def main() -> int:
    options = _options()
    wanted = [p for p in PACKAGES if not options.only or p.name in options.only.split(",")]
    rows = []
    for package in wanted:
        print(f"{package.requirement} ...", file=sys.stderr, flush=True)
        rows.append(_audited(package))
    _print(rows)
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(row) for row in rows], indent=1))
    if options.write:
        place(Path(options.write), "in_the_wild.py", _markdown(rows))
    unchecked = list(_unchecked(rows))
    for line in unchecked:
        print(f"not in {PAGE.name}: {line}")
    return int(bool(unchecked))


@contextmanager
def installed(package: Package) -> Iterator[str]:
    """Install a package into a temporary folder, and yield its path."""
    with tempfile.TemporaryDirectory(prefix="pullback-wild-") as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        subprocess.run([*pip, "--no-deps", "--target", folder, package.requirement, *package.needs], check=True)
        yield folder


def _audited(package: Package) -> Row:
    with installed(package) as folder:
        command = [sys.executable, "-m", "pullback", "check", *package.targets, "--budget", BUDGET, "--format", "json"]
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONWARNINGS": "ignore"}
        start = time.perf_counter()
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, check=False)
        seconds = time.perf_counter() - start
    if done.returncode not in (0, 1):
        raise SystemExit(f"{package.requirement}: the audit could not be run")
    return _row(package, Report.from_dict(json.loads(done.stdout)), seconds)


def _row(package: Package, report: Report, seconds: float) -> Row:
    errors = [f for f in report.findings if f.severity == "error"]
    told = {severity: _by_rule(report, severity) for severity in ("error", "warning")}
    audited = sum(subject.status != "unaudited" for subject in report.subjects)
    found = sorted({f"{f.rule} {f.subject}" for f in errors})
    functions = len(report.subjects)
    return Row(package.requirement, package.field, functions, audited, told["error"], told["warning"], found, seconds)


def _by_rule(report: Report, severity: str) -> dict[str, int]:
    """Count the functions with a finding, by rule."""
    named = {(f.rule, f.subject) for f in report.findings if f.severity == severity}
    return dict(sorted(Counter(rule for rule, _ in named).items()))


def _unchecked(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the errors that the page does not list."""
    page = PAGE.read_text()
    for row in rows:
        for found in row.findings:
            rule, _, subject = found.partition(" ")
            if not any(rule in line and f"`{subject}`" in line for line in page.splitlines()):
                yield f"{row.package}: {found}"


def _cells(row: Row) -> list[str]:
    def counts(of: dict[str, int]) -> str:
        return ", ".join(rule if count == 1 else f"{rule} ×{count}" for rule, count in of.items()) or "–"

    return [
        row.package, row.field, f"{row.subjects}", f"{row.audited}", counts(row.errors), counts(row.warnings),
        f"{row.seconds:.0f}",
    ]  # fmt: skip


_HEADINGS = ("package", "field", "functions", "audited", "errors", "warnings", "seconds")


def _print(rows: Sequence[Row]) -> None:
    table = Table(*_HEADINGS, box=None, header_style="bold")
    for row in rows:
        table.add_row(*_cells(row))
    table.add_row(*_total(rows))
    Console(highlight=False).print(table)


def _total(rows: Sequence[Row]) -> list[str]:
    errors, warnings = (sum(sum(getattr(row, kind).values()) for row in rows) for kind in ("errors", "warnings"))
    numbers = [sum(row.subjects for row in rows), sum(row.audited for row in rows), errors, warnings]
    return [f"{len(rows)} packages", "", *map(str, numbers), f"{sum(row.seconds for row in rows):.0f}"]


def _markdown(rows: Sequence[Row]) -> str:
    lines = [f"| {' | '.join(_HEADINGS)} |", "| -- | -- | --: | --: | -- | -- | --: |"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in [*map(_cells, rows), _total(rows)])])


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="audit only these packages, separated by commas")
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--write", help="update the table of this page")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
