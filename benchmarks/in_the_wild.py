"""What does an audit find in published packages?

Installs each package of `wild_packages.py`, at the version that is named there, into a folder that is deleted at the
end, audits every custom function in it by the command line, and prints a table: how many functions there are, how many
could be run by the examples that the audit makes, what it says of them rule by rule, and how long it takes. Each error
was checked by hand once and is in docs/in_the_wild.md; one that is not in there is new, and the exit status is 1.

    python benchmarks/in_the_wild.py [--only NAME,…] [--json FILE] [--write docs/in_the_wild.md]

The packages' code is imported and run, as by a test runner. Needs a network.
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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from side_by_side import place
from wild_packages import PACKAGES, Package

from pullback.report.model import Report

PAGE = Path(__file__).resolve().parents[1] / "docs" / "in_the_wild.md"
BUDGET = "15"
"""Seconds for each function."""


@dataclass(frozen=True)
class Row:
    """How the audit of a package went.

    Attributes:
        subjects: custom functions in it.
        audited: of these, those that ran.
        errors, warnings: how many functions each rule names.
        findings: each error, as rule and function.
        seconds: of the command.
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


def _audited(package: Package) -> Row:
    with tempfile.TemporaryDirectory(prefix="pullback-wild-") as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        subprocess.run([*pip, "--no-deps", "--target", folder, package.requirement, *package.needs], check=True)
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
    """Return for each rule how many functions it names."""
    named = {(f.rule, f.subject) for f in report.findings if f.severity == severity}
    return dict(sorted(Counter(rule for rule, _ in named).items()))


def _unchecked(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the errors that the page does not speak of."""
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
    parser.add_argument("--only", help="names of packages")
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--write", help="page whose table is renewed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
