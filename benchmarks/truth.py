"""Recall and precision of the audit: known bugs that it finds, and findings that are right.

Installs each package of `labels/` into a temporary folder, audits its labelled calls, and compares every finding with
the labels. These have proofs in plain PyTorch and were written before the audit ran on the package. Every second
package, by name, is held out: its findings are not looked at during work on the audit. `labels/fresh/` is a third part,
unseen when the first two had been worked on. `labels/blind/`, `labels/last/`, `labels/unseen/`, `labels/outside/`,
`labels/beyond/`, `labels/afield/` and `labels/anew/` are seven more, each collected after work on the part before it.

    python benchmarks/truth.py [--half tuned|held-out|fresh|blind|last|unseen|outside|beyond|afield|anew]
                               [--only NAME,…] [--guess] [--prove | --proofs] [--json FILE] [--write FILE]

With `--guess` the audit gets the labelled Functions without inputs, as from the command line. With `--proofs` only the
calls and the proofs of the known bugs run, without an audit. The exit status is 1 if an error is not judged yet, or a
proof fails. Runs code of the packages. Needs a network.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from labels import Call, Package, is_loud
from rich.console import Console
from rich.table import Table
from side_by_side import place

import pullback

LABELS = Path(__file__).resolve().parent / "labels"
LATER = ("fresh", "blind", "last", "unseen", "outside", "beyond", "afield", "anew")
HALVES = ("tuned", "held-out", *LATER)
BUDGET = 10.0
"""Seconds for each call, the default of an audit."""
FIRST_ORDER = "PB1"
"""An error of this family covers whatever else is wrong with the same function."""


@dataclass
class Audited:
    """Result of the audit of one call.

    Attributes:
        call: its name.
        purpose: the intended gradient.
        bugs: description of each known bug, and the rules that report it.
        findings: rule, severity and message of each.
        judged: whether errors that no bug covers are right; `None` for those that are open to debate.
        is_run: whether a call was audited.
        lines: of the report.
        seconds: that it took.
    """

    package: str
    call: str
    purpose: str
    bugs: list[tuple[str, list[str]]]
    findings: list[tuple[str, str, str]] = field(default_factory=list)
    judged: dict[str, bool | None] = field(default_factory=dict)
    is_run: bool = False
    lines: int = 0
    seconds: float = 0.0

    @property
    def errors(self) -> list[str]:
        """The rules that report an error, each once."""
        return sorted({rule for rule, severity, _ in self.findings if severity == "error"})

    def tells(self, rules: Sequence[str], severities: Sequence[str]) -> bool:
        """Whether one of some rules, or a first-order error, is among the findings."""
        named = {rule for rule, severity, _ in self.findings if severity in severities}
        return bool(named & set(rules)) or any(rule.startswith(FIRST_ORDER) for rule in self.errors)

    def verdict(self, rule: str) -> str:
        """Whether an error of a rule is "right", "false", "open" to debate, or "unjudged"."""
        if any(rule in rules for _, rules in self.bugs):
            return "right"
        if rule not in self.judged:
            return "unjudged"
        return {True: "right", False: "false", None: "open"}[self.judged[rule]]


def main() -> int:
    options = _options()
    if options.of:
        _print_audits(options)
        return 0
    audited: dict[str, list[Audited]] = {half: [] for half in HALVES}
    failed = []
    for name, half in halves().items():
        if options.half in ("", half) and (not options.only or name.split(".")[-1] in options.only.split(",")):
            print(f"{name} ...", file=sys.stderr, flush=True)
            calls, proofs = _run(name, options)
            audited[half] += calls
            failed += [f"{name}: {proof}" for proof in proofs]
    rows = {half: _figures(calls) for half, calls in audited.items() if calls}
    _print(rows)
    for calls in audited.values():
        _print_misses(calls)
    print(*failed, sep="\n")
    if options.json:
        everything = [asdict(call) for calls in audited.values() for call in calls]
        Path(options.json).write_text(json.dumps(everything, indent=1))
    if options.write and rows:
        place(Path(options.write), "truth.py", _markdown(rows))
    unjudged = [
        c for calls in audited.values() for c in calls if any(c.verdict(rule) == "unjudged" for rule in c.errors)
    ]
    return int(bool(unjudged or failed))


def halves() -> dict[str, str]:
    """Return the part of each labelled package, by the name of its module within `labels`."""
    seen = {name: HALVES[position % 2] for position, name in enumerate(_modules(LABELS))}
    return seen | {f"{part}.{name}": part for part in LATER for name in _modules(LABELS / part)}


def _modules(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


def _run(name: str, options: Any) -> tuple[list[Audited], list[str]]:
    """Audit the labelled calls of a package in a separate process; return the results, and failed proofs."""
    package: Package = importlib.import_module(f"labels.{name}").PACKAGE
    with tempfile.TemporaryDirectory(prefix="pullback-truth-") as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        requirements = [f"{package.name}=={package.version}", *package.needs]
        subprocess.run([*pip, "--no-deps", "--target", folder, *requirements], check=True)
        paths = [folder, str(LABELS.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore"}
        flags = [f"--{flag}" for flag in ("prove", "proofs", "guess") if getattr(options, flag)]
        command = [sys.executable, __file__, "--of", name, *flags]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    return [Audited(**call) for call in said["calls"]], said["failed"]


def _print_audits(options: Any) -> None:
    """Print the results of the audit of a package as JSON; runs in a separate process."""
    labels = importlib.import_module(f"labels.{options.of}")
    calls = [call for call in labels.CALLS if not options.proofs and (not options.guess or _is_function(call))]
    audited = [asdict(_audited(labels.PACKAGE, call, options.guess)) for call in calls]
    failed = _failed(labels.CALLS) if options.prove or options.proofs else []
    print(json.dumps({"calls": audited, "failed": failed}))


def _failed(calls: Sequence[Call]) -> list[str]:
    """Return the calls that do not run, and the proofs that fail."""
    claims = [(call, "it runs", partial(_runs, call)) for call in calls]
    claims += [(call, bug.what, bug.proof) for call in calls for bug in call.bugs]
    return [f"{call.make.__name__}: {what}" for call, what, proof in claims if not _is_proven(proof)]


def _runs(call: Call) -> bool:
    """Run what is called on its arguments."""
    target, args = call.make()
    (target.apply if isinstance(target, type) else target)(*args)
    return True


def _is_function(call: Call) -> bool:
    return isinstance(call.make()[0], type)


def _is_proven(proof: Any) -> bool:
    try:
        return bool(proof())
    except Exception:
        traceback.print_exc()
        return False


def _audited(package: Package, call: Call, guess: bool) -> Audited:
    bugs = [(bug.what, list(bug.rules)) for bug in call.bugs]
    judged = {**dict.fromkeys(call.doubtful), **{rule: is_right for rule, (is_right, _) in call.judged.items()}}
    audited = Audited(package.name, call.make.__name__, call.purpose, bugs, judged=judged)
    start = time.perf_counter()
    target, args = call.make()
    report = pullback.check(target, *([] if guess else args), budget=BUDGET)
    audited.seconds = time.perf_counter() - start
    audited.findings = [(f.rule, f.severity, f.message) for f in report.findings]
    audited.is_run = all(subject.status != "unaudited" for subject in report.subjects)
    audited.lines = len(str(report).splitlines())
    return audited


def _figures(calls: Sequence[Audited]) -> dict[str, str]:
    """Return the figures of some calls, by name."""
    bugs = [(call, rules) for call in calls for _, rules in call.bugs]
    silent = [(call, rules) for call in calls for what, rules in call.bugs if not is_loud(what)]
    verdicts = [call.verdict(rule) for call in calls for rule in call.errors]
    right = [call for call in calls if not call.bugs and call.purpose == "derivative"]
    other = [call for call in calls if not call.bugs and call.purpose == "other"]
    warnings = [sum(severity == "warning" for _, severity, _ in call.findings) for call in right]
    stated = [verdict for verdict in verdicts if verdict != "open"]
    return {
        "packages": str(len({call.package for call in calls})),
        "calls": str(len(calls)),
        "known bugs": str(len(bugs)),
        "reported as an error": _share(call.tells(rules, ["error"]) for call, rules in bugs),
        "as an error or a warning": _share(call.tells(rules, ["error", "warning"]) for call, rules in bugs),
        "of those that raise nothing, as an error": _share(call.tells(rules, ["error"]) for call, rules in silent),
        "errors": f"{len(verdicts)}, {len(verdicts) - len(stated)} of them open to debate",
        "errors that are correct": _share(verdict == "right" for verdict in stated),
        "false alarms on correct derivatives": f"{_accused(right)} of {len(right)}",
        "false alarms on gradients that differ on purpose": f"{_accused(other)} of {len(other)}",
        "audited": _share(call.is_run for call in calls),
        "warnings on a correct derivative, mean": f"{statistics.mean(warnings):.1f}" if warnings else "–",
        "lines for a call, median": f"{statistics.median(call.lines for call in calls):.0f}",
        "seconds for a call, median": f"{statistics.median(call.seconds for call in calls):.1f}",
    }


def _share(yes: Iterable[bool]) -> str:
    found = list(yes)
    return f"{100 * sum(found) / len(found):.0f} % of {len(found)}" if found else "–"


def _accused(calls: Sequence[Audited]) -> int:
    return sum(any(call.verdict(rule) in ("false", "unjudged") for rule in call.errors) for call in calls)


def _print(rows: dict[str, dict[str, str]]) -> None:
    table = Table("", *rows, box=None, header_style="bold")
    for figure in next(iter(rows.values()), {}):
        table.add_row(figure, *(row[figure] for row in rows.values()))
    Console(highlight=False).print(table)


def _print_misses(calls: Sequence[Audited]) -> None:
    """Print known bugs that were not found, and errors that are false or not judged."""
    for call in calls:
        for what, rules in call.bugs:
            if not call.tells(rules, ["error"]):
                how = "as a warning" if call.tells(rules, ["warning"]) else "not told"
                print(f"{call.package} {call.call}: {how}: {what} ({', '.join(rules)})")
        for rule, severity, message in call.findings:
            if severity == "error" and call.verdict(rule) in ("false", "unjudged"):
                print(f"{call.package} {call.call}: {call.verdict(rule)}: {rule} {message}")


def _markdown(rows: dict[str, dict[str, str]]) -> str:
    lines = [f"| | {' | '.join(rows)} |", f"| -- |{' --: |' * len(rows)}"]
    for figure in next(iter(rows.values())):
        lines.append(f"| {figure} | {' | '.join(row[figure] for row in rows.values())} |")
    return "\n".join(lines)


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=HALVES, default="")
    parser.add_argument("--only", help="audit only these modules of labels/, separated by commas")
    parser.add_argument("--guess", action="store_true", help="audit the labelled Functions without inputs")
    parser.add_argument("--prove", action="store_true", help="also run the proofs of the known bugs")
    parser.add_argument("--proofs", action="store_true", help="run only the proofs of the known bugs, without an audit")
    parser.add_argument("--json", help="write every finding to this file")
    parser.add_argument("--write", help="update the table of this page")
    parser.add_argument("--of", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
