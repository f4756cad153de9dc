"""Share of custom functions of published packages that the audit runs without input from the user.

Installs each package of `labels/fresh/` into a temporary folder, and audits it by its name, as `pullback check NAME`
does. Counts its functions and those that ran, and gives the reason for each of the others. The packages were not chosen
for their functions.

    python benchmarks/unaided.py [--only NAME,…] [--json FILE] [--write FILE]

Imports and runs code of the packages. Needs a network.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from labels import Package
from rich.console import Console
from rich.table import Table
from side_by_side import place

from pullback.report.report import Report

FRESH = Path(__file__).resolve().parent / "labels" / "fresh"
_LENGTH = 160
_QUICK = ("--select", "PB0,PB1")  # what is counted is whether it runs
_WHY = ("PB001", "PB003")
"""Rules that say why a function was not audited: no call worked, or the audit was stopped."""
_ABSENT = ("it needs what is not here", "its module could not be imported", "could not be imported")


@dataclass(frozen=True)
class Row:
    """Functions of a package that the audit ran, and did not run.

    Attributes:
        functions, audited: number of custom functions, and of those that ran.
        absent: number of functions that need a missing package, extension or GPU.
        missed: name of each other function, the reason, and the advice of the report.
    """

    package: str
    functions: int
    audited: int
    absent: int
    missed: list[tuple[str, str, str]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="audit only these modules of labels/fresh/, separated by commas")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path, help="write the table between the markers of this page")
    options = parser.parse_args()
    rows = []
    for name in sorted(path.stem for path in FRESH.glob("*.py") if path.stem != "__init__"):
        if not options.only or name in options.only.split(","):
            print(f"{name} ...", file=sys.stderr, flush=True)
            rows.append(_audited(importlib.import_module(f"labels.fresh.{name}").PACKAGE))
    _print(rows)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    if options.write:
        place(options.write, "unaided.py", _markdown(rows))
    return 0


def _audited(package: Package) -> Row:
    with tempfile.TemporaryDirectory(prefix="pullback-unaided-") as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        requirement = f"{package.name}=={package.version}"
        subprocess.run([*pip, "--no-deps", "--target", folder, requirement, *package.needs], check=True)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, *_given()]), "PYTHONWARNINGS": "ignore"}
        command = [
            sys.executable,
            "-m",
            "pullback",
            "check",
            *_modules(folder, package),
            "-q",
            "--format",
            "json",
            *_QUICK,
        ]
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, check=False)
    report = Report.from_dict(json.loads(done.stdout))
    whys = {f.subject: (f.message.removeprefix("not audited: "), f.hint) for f in report.findings if f.rule in _WHY}
    unaudited = [subject.name for subject in report.subjects if subject.status == "unaudited"]
    missed = [(name, *whys.get(name, ("", ""))) for name in unaudited]
    absent = sum(why.startswith(_ABSENT) for _, why, _ in missed)
    return Row(requirement, len(report.subjects), len(report.subjects) - len(unaudited), absent, missed)


def _given() -> list[str]:
    return list(filter(None, [os.environ.get("PYTHONPATH")]))


def _modules(folder: str, package: Package) -> list[str]:
    """Return the import names of a package."""
    wanted = package.name.lower().replace("_", "-")
    found: Distribution = next(d for d in distributions(path=[folder]) if d.name.lower().replace("_", "-") == wanted)
    tops = {file.parts[0] for file in found.files or () if file.suffix == ".py"}
    names = {top.removesuffix(".py") for top in tops}
    return sorted(name for name in names if name.isidentifier() and name not in ("tests", "test", "examples", "docs"))


def _print(rows: Sequence[Row]) -> None:
    table = Table("package", "functions", "audited", "need what is not here", box=None, header_style="bold")
    for row in rows:
        table.add_row(row.package, str(row.functions), str(row.audited), str(row.absent))
    console = Console(highlight=False)
    console.print(table)
    console.print(_share(rows))
    for row in rows:
        for name, why, hint in row.missed:
            console.print(f"{row.package} {name}: {why[:_LENGTH]} -> {hint}", soft_wrap=True, markup=False)


def _share(rows: Sequence[Row]) -> str:
    possible, audited = sum(row.functions - row.absent for row in rows), sum(row.audited for row in rows)
    return f"{audited} of {possible}: {100 * audited / max(possible, 1):.0f} %"


def _markdown(rows: Sequence[Row]) -> str:
    lines = ["| package | functions | audited | need what is not here |", "| -- | --: | --: | --: |"]
    lines += [f"| {row.package} | {row.functions} | {row.audited} | {row.absent} |" for row in rows]
    lines += [f"| **all** | | **{_share(rows)}** | |", "", "| not audited | why | cure |", "| -- | -- | -- |"]
    for row in rows:
        for name, why, hint in row.missed:
            lines.append(f"| `{name}` | {_cell(why)} | {_cell(hint)} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    text = re.sub(r"/\S*/", "…/", text)  # of this machine
    short = text if len(text) <= _LENGTH else text[: _LENGTH - 1] + "…"
    return short.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
