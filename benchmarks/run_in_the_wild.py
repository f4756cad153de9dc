"""`pullback run` on the training script of a published library: unchanged output, and findings.

Installs e3nn (equivariant networks; its radial basis is a custom Function) into a temporary folder, and runs its
training script `examples/tetris.py` twice with one seed: by Python, and by `pullback run`. The output must agree to the
last digit of every loss, and the Function must be audited on inputs of the script. Otherwise the exit status is 1.

    python benchmarks/run_in_the_wild.py

Needs a network.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pullback.report.report import Report

LIBRARY = "e3nn==0.6.0"
NEEDS = (
    "opt-einsum-fx", "opt-einsum", "scipy", "torch-geometric", "aiohttp", "aiosignal", "aiohappyeyeballs", "attrs",
    "frozenlist", "multidict", "propcache", "yarl", "idna", "psutil", "pyparsing", "requests", "urllib3", "certifi",
    "charset-normalizer", "tqdm", "xxhash",
)  # fmt: skip
FUNCTION = "_SoftUnitStep"
SEEDED = """
import runpy
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
runpy.run_path("examples/tetris.py", run_name="__main__")
"""
"""The script draws without a seed, and sums of several threads differ."""


def main():
    with tempfile.TemporaryDirectory(prefix="pullback-wild-") as name:
        folder = Path(name)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        subprocess.run([*pip, "--no-deps", "--target", folder, LIBRARY, *NEEDS], check=True)
        (folder / "seeded.py").write_text(SEEDED)
        plain, seconds = _run(folder, [sys.executable, "seeded.py"])
        options = ["--format", "json", "-o", "report.json", "--fail-on", "never"]
        watched, watched_seconds = _run(folder, [sys.executable, "-m", "pullback", "run", *options, "seeded.py"])
        report = Report.from_dict(json.loads((folder / "report.json").read_text()))
    _print(report)
    lines = plain.splitlines()
    print("\n".join(lines[-3:]))
    print(f"what the script prints is {'the same' if plain == watched else 'NOT the same'}: {len(lines)} lines")
    print(f"the script alone {seconds:.0f} s, with the audit at its end {watched_seconds:.0f} s")
    audited = [s for s in report.subjects if s.name.endswith(FUNCTION) and s.cases]
    return int(plain != watched or not audited)


def _run(folder, command):
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONWARNINGS": "ignore"}
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}")
    return done.stdout, time.perf_counter() - start


def _print(report):
    table = Table("function", "status", "cases", "findings", box=None, header_style="bold")
    for subject in report.subjects:
        rules = sorted({f"{f.rule} {f.severity}" for f in report.findings if f.subject == subject.name})
        table.add_row(subject.name, subject.status, str(subject.cases), ", ".join(rules))
    Console(highlight=False).print(table)


if __name__ == "__main__":
    sys.exit(main())
