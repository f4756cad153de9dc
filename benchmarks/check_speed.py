"""Duration of an audit: three measurements, each with a bound.

- one function: `pullback.check` with all rules, in a warm process, on an elementwise Function of one
  input that supports every transform, so that no rule ends early. The median of five audits may be at most 3 s.
- a budget of one second: every contract rule (PB1) must still run, on a fast Function and on one whose forward takes
  5 ms. The report lists the rules that ran and the duration of `pullback.check`.
- a hundred functions: a file of 100 distinct Functions, correct and wrong ones from ten templates, through the command
  line on two cores, including start-up; at most 180 s. The figure counts only if all are audited, all wrong ones are
  found, and no correct one gets an error.

    python benchmarks/check_speed.py [--json FILE] [--keep FILE]

The exit status is 1 if a bound is missed. Run it on an idle machine.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from hundred_functions import hundred

import pullback
from pullback.check.find.discover import subject_of
from pullback.check.rules import all_rules
from pullback.check.run_audit import run_audit
from pullback.check.subject import Options

REPEATS = 5
CORES = 2
BOUND_ONE, BOUND_HUNDRED = 3.0, 180.0


class Tanh(torch.autograd.Function):
    """The hyperbolic tangent."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return torch.tanh(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * (1 - out * out)

    @staticmethod
    def jvp(ctx, tx):
        (out,) = ctx.saved_tensors
        return tx * (1 - out * out)


class SlowTanh(Tanh):
    """The hyperbolic tangent, in 5 ms."""

    @staticmethod
    def forward(x):
        time.sleep(0.005)
        return torch.tanh(x)


def measure_one() -> dict:
    """Audit one function several times in this process, after one audit to warm up."""
    reports, seconds = [], []
    for _ in range(1 + REPEATS):
        start = time.perf_counter()
        reports.append(pullback.check(Tanh))
        seconds.append(time.perf_counter() - start)
    first, *rest = seconds
    return {
        "first": first,
        "seconds": rest,
        "min": min(rest),
        "median": statistics.median(rest),
        "bound": BOUND_ONE,
        "cases": reports[-1].subjects[0].cases,
        "rules": sum(rule.runtime is not None for rule in all_rules()),
        "sound": all(report.ok for report in reports) and all(report.summary["warnings"] == 0 for report in reports),
    }


class Recorder:
    """Receives the events of an audit and records which rules ran."""

    def __init__(self) -> None:
        self.rules: dict[str, None] = {}

    def step(self, rule: str, what: str, reproduce: str) -> None:
        self.rules[rule] = None

    def beat(self) -> None:
        pass

    def finding(self, finding: pullback.Finding) -> None:
        pass


def measure_budget(function: type[torch.autograd.Function]) -> dict:
    """Audit a function with a budget of one second: by `pullback.check` for the time, in this process for the rules."""
    start = time.perf_counter()
    pullback.check(function, budget=1.0)
    seconds = time.perf_counter() - start
    recorder = Recorder()
    run_audit(subject_of(function), Options(budget=1.0), None, recorder)
    runtime = [rule.id for rule in all_rules() if rule.runtime is not None]
    ran = [rule for rule in runtime if rule in recorder.rules]
    return {
        "seconds": seconds,
        "ran": ran,
        "contract_left_out": [rule for rule in runtime if rule.startswith("PB1") and rule not in ran],
        "others_left_out": [rule for rule in runtime if not rule.startswith("PB1") and rule not in ran],
    }


def measure_hundred(keep: Path | None) -> dict:
    """Audit a hundred functions by the command line, on two cores."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hundred.py"
        path.write_text(hundred(), encoding="utf-8")
        if keep:
            keep.write_text(hundred(), encoding="utf-8")
        command = [sys.executable, "-m", "pullback", "check", path.name, "--format", "json"]
        with two_cores() as cores:
            start = time.perf_counter()
            done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=False)
            seconds = time.perf_counter() - start
    report = json.loads(done.stdout)
    errors = {finding["subject"] for finding in report["findings"] if finding["severity"] == "error"}
    names = [subject["name"] for subject in report["subjects"]]
    return {
        "seconds": seconds,
        "bound": BOUND_HUNDRED,
        "cores": cores,
        "functions": len(names),
        "summary": report["summary"],
        "slowest": max(report["subjects"], key=lambda subject: subject["seconds"])["name"],
        "slowest_seconds": max(subject["seconds"] for subject in report["subjects"]),
        "accused": sorted(name for name in errors if name.startswith("Right")),
        "missed": sorted(name for name in names if name.startswith("Wrong") and name not in errors),
        "budget_spent": sum(finding["rule"] == "PB006" for finding in report["findings"]),
    }


class two_cores:  # noqa: N801 - used like a function
    """Confine child processes to two cores, where the system supports it; yield the number of cores."""

    def __enter__(self) -> int:
        if not hasattr(os, "sched_setaffinity"):
            return os.cpu_count() or 1
        self.before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, sorted(self.before)[:CORES])
        return len(os.sched_getaffinity(0))

    def __exit__(self, *_: object) -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.before)


def machine() -> dict:
    """Describe the machine that the figures depend on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pullback": pullback.__version__,
        "system": platform.system(),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def cpu_name() -> str:
    """Return the name of the processor, if the system has one."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def show(result: dict) -> list[str]:
    """Print the table; return the bounds that were missed."""
    here, one, many = result["machine"], result["one_function"], result["hundred_functions"]
    missed = []

    def row(what: str, figure: str, bound: str, holds: bool) -> None:
        print(f"{what:52} {figure:>22} {bound:>8}  {'yes' if holds else 'NO'}")
        missed.extend([] if holds else [what])

    print(f"{here['cpu']}, {here['cores']} cores, load {here['load_before']:.1f} before; ", end="")
    print(f"{here['system']}, python {here['python']}, torch {here['torch']}, pullback {here['pullback']}")
    print(f"\n{'measurement':52} {'figure':>22} {'bound':>8}  holds")
    row(
        f"one function, {one['rules']} rules, {one['cases']} cases: median (min)",
        f"{one['median']:.2f} s ({one['min']:.2f} s)",
        f"{BOUND_ONE:g} s",
        one["median"] <= BOUND_ONE,
    )
    row("one function: nothing found, as it is right", "", "", one["sound"])
    for name, budget in result["budget_of_one_second"].items():
        left_out = len(budget["contract_left_out"])
        contract = sum(rule.startswith("PB1") for rule in budget["ran"])
        row(f"budget 1 s, {name}: contract rules run", f"{contract} in {budget['seconds']:.2f} s", "all", not left_out)
    row(
        f"{many['functions']} functions, {many['cores']} cores, start-up included",
        f"{many['seconds']:.0f} s",
        f"{BOUND_HUNDRED:g} s",
        many["seconds"] <= BOUND_HUNDRED and many["functions"] == 100,
    )
    row("100 functions: wrong ones missed", str(len(many["missed"])), "0", not many["missed"])
    row("100 functions: false alarms", str(len(many["accused"])), "0", not many["accused"])
    print(f"\nslowest of the hundred: {many['slowest']}, {many['slowest_seconds']:.1f} s; ", end="")
    print(f"budget spent before the last rule: {many['budget_spent']}; {many['summary']}")
    for name, budget in result["budget_of_one_second"].items():
        print(f"\nbudget 1 s, {name}: ran {', '.join(budget['ran'])}")
        print(f"left out: {', '.join([*budget['contract_left_out'], *budget['others_left_out']]) or 'none'}")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="also write the hundred functions to FILE")
    options = parser.parse_args()
    result = {
        "machine": machine(),
        "hundred_functions": measure_hundred(options.keep),
        "one_function": measure_one(),
        "budget_of_one_second": {"fast": measure_budget(Tanh), "5 ms a forward": measure_budget(SlowTanh)},
    }
    missed = show(result)
    if options.json:
        options.json.write_text(json.dumps({**result, "missed": missed}, indent=1) + "\n", encoding="utf-8")
    if missed:
        print(f"\nmissed: {'; '.join(missed)}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
