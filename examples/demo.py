"""What `make demo` shows: an audit of this folder's tutorial functions, then of functions of two published packages.

The first is also written as a page, report.html.
The packages come from the registry that pip is configured for, into a temporary folder that is deleted at the
end. Without a network the second half is skipped.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from rich.console import Console

from pullback.report.html import to_html
from pullback.report.model import Finding
from pullback.report.report import Report
from pullback.report.terminal import render, render_text
from pullback.report.text import clean_line

ROOT = Path(__file__).resolve().parents[1]
TUTORIAL = "examples/tutorial_functions.py"
PAGE = ROOT / "report.html"
PACKAGES = {"entmax": "1.3", "snntorch": "1.0.0"}
TARGETS = {"entmax": ("entmax.activations", "entmax.losses"), "snntorch": ("snntorch",)}
"""Of entmax what people call: the functions below that iterate take half a minute more."""
BUDGET = "15"  # seconds of work for a function: entmax iterates
STATUS = {0: "nothing of severity error", 1: "findings of severity error", 2: "the audit could not be run"}


def main() -> int:
    print("Pullback runs custom autograd functions and compares their gradients with what they should be.")
    statuses = [audit_tutorial()]
    with tempfile.TemporaryDirectory(prefix="pullback-demo-") as folder:
        if install(folder):
            statuses += [audit_package(name, folder) for name in PACKAGES]
    print("\nWhat each rule means: pullback rules PB101. What the audit does: docs/check.md.")
    print("These errors in plain PyTorch: docs/in_the_wild.md.")
    return int(not set(statuses) <= {0, 1})  # findings are what the demo is to show


def audit_tutorial() -> int:
    """Show what the command prints, and the same as a page, and say what its exit status means."""
    heading(f"pullback check {TUTORIAL}")
    command = [sys.executable, "-m", "pullback", "check", TUTORIAL, "--format", "json"]
    status, out = run(command, cwd=ROOT, stdout=subprocess.PIPE)
    if status in (0, 1):
        report = Report.from_dict(json.loads(out))
        os.chdir(ROOT)  # the lines of source are found by the names that the report has
        render(report, Console(highlight=False))
        PAGE.write_text(to_html(report), encoding="utf-8")
        print(f"\nThe same as a page, with pictures: {PAGE}")
    print(f"\nExit status {status}: {STATUS.get(status, 'ended early')}.", end=" ")
    print(
        "They are the point of that file: it holds mistakes that tutorials make, beside correct functions."
        if status == 1
        else ""
    )
    return status


def install(folder: str) -> bool:
    """Install the packages, without what they depend on, where nothing else sees them."""
    wanted = [f"{name}=={version}" for name, version in PACKAGES.items()]
    print(f"\nInstalling {' and '.join(wanted)} into a temporary folder, for this demo only ...", flush=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    options = ["--no-deps", "--retries", "1", "--timeout", "15", "--target", folder]
    status, said = run([*pip, *options, *wanted], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if status != 0:
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        print(f"Left out, since they could not be had (no network?): {clean_line(last)}")
    return status == 0


def audit_package(name: str, folder: str) -> int:
    """Audit custom functions of an installed package; show the errors, and the warnings rule by rule."""
    (found,) = importlib.metadata.distributions(name=name, path=[folder])
    targets = TARGETS[name]
    heading(f"pullback check {' '.join(targets)} --budget {BUDGET}   ({name} {found.version})")
    command = [sys.executable, "-m", "pullback", "check", *targets, "--budget", BUDGET, "--format", "json"]
    status, out = run(
        command,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        },
        stdout=subprocess.PIPE,
    )
    if status not in (0, 1):
        print(f"Exit status {status}: {STATUS.get(status, 'ended early')}.")
        return status
    report = Report.from_dict(json.loads(out))
    text = render_text(report).rstrip()
    print(text.partition("\n\n")[0])
    for severity in ("error", "warning"):
        chosen = sorted((f for f in report.findings if f.severity == severity), key=attrgetter("rule"))
        for _, members in groupby(chosen, key=attrgetter("rule")):
            show(list(members))
    print(f"\n{name} {found.version}: {text.rpartition(chr(10))[2]}")
    return status


def show(findings: list[Finding]) -> None:
    """Print what one rule found: each error, and of warnings the first and who else has it."""
    first, *others = findings
    print(f"\n  {first.severity} {first.rule} {first.name}")
    for finding in findings[: None if first.severity == "error" else 1]:
        text = clean_line(f"{finding.subject} ({finding.location}): {finding.message}")
        print(textwrap.fill(text, 100, initial_indent="    ", subsequent_indent="      "))
    if others and first.severity != "error":
        names = ", ".join(clean_line(finding.subject) for finding in others)
        print(textwrap.fill(f"also in: {names}", 100, initial_indent="    ", subsequent_indent="      "))


def heading(text: str) -> None:
    print(f"\n== {text}\n", flush=True)


def run(command: list[str], **options) -> tuple[int, bytes]:
    """Run a command to its end; Ctrl-C reaches it too, and it is given time to clean up."""
    process = subprocess.Popen(command, **options)
    try:
        out, _ = process.communicate()
    except KeyboardInterrupt:
        process.wait()
        raise
    return process.returncode, out or b""


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
