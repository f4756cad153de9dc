"""Share of the planted faults (`faults.py`) that fuzzing finds: `python -m tests.adversary.power --minutes 10`.

Each fault is put into a copy of the library. Fuzzing then runs on the copy for some minutes, until it finds a failure
that the library itself does not have.
"""

import argparse
import contextlib
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pullback
from tests.adversary.faults import FAULTS, Fault
from tests.adversary.fuzz import HANG, run

TURNS = ["native, g++", "native, g++", "eager"]
"""Backends that are tried: most faults are in the compiled kernels."""
PACKAGE = Path(pullback.__file__).parent
WANTED = math.ceil(0.9 * len(FAULTS))


@dataclass(frozen=True)
class Found:
    """Cost of finding a fault: seconds, and seconds of processor time, compilers included."""

    seconds: float
    processor: float

    def __str__(self) -> str:
        """Return a line of the report."""
        return f"{self.seconds:.0f} s, {self.processor:.0f} s of processor time"


def finds(fault: Fault, minutes: float, jobs: int, seed: int) -> Found | None:
    """Return the cost of finding a fault; `None` if it is not found."""
    with tempfile.TemporaryDirectory(prefix="fault-") as folder:
        shutil.copytree(PACKAGE, Path(folder) / "pullback", ignore=shutil.ignore_patterns("__pycache__"))
        fault.put_into(Path(folder) / "pullback")
        began, before, path = time.monotonic(), _processor_time(), os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{folder}:{Path.cwd()}"
        try:
            with contextlib.closing(run(minutes, seed, jobs, TURNS, shrink=False)) as lines:
                is_found = any(line.startswith("FOUND") and is_right_without(line) for line in lines)
        finally:
            os.environ["PYTHONPATH"] = path or str(PACKAGE.parent)
    return Found(time.monotonic() - began, _processor_time() - before) if is_found else None


def _processor_time() -> float:
    """Return the processor time, in seconds, of ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def is_right_without(found: str) -> bool:
    """Whether the program of a finding passes in the library without the fault."""
    program = found[found.rindex("from tests.adversary.agree") :]
    environment = {**os.environ, "PYTHONPATH": f"{PACKAGE.parent}:{Path.cwd()}"}
    command = [sys.executable, "-c", program]
    try:
        is_right = subprocess.run(command, env=environment, capture_output=True, timeout=HANG).returncode == 0
    except subprocess.TimeoutExpired:
        is_right = False
    if not is_right:
        print(f"without the fault as well: {found}", file=sys.stderr, flush=True)
    return is_right


def main() -> None:
    """Print which faults are found; exit with 1 if they are too few."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="try only faults whose name contains this text")
    options = parser.parse_args()
    chosen = [fault for fault in FAULTS if options.only in fault.name]
    if not chosen:
        parser.error(f"no fault's name contains {options.only!r}: they are {'; '.join(fault.name for fault in FAULTS)}")
    found = 0
    for i, fault in enumerate(chosen):
        effort = finds(fault, options.minutes, options.jobs, options.seed + 10**6 * i)
        found += effort is not None
        print(f"{fault.name}: {effort or 'not found'}", flush=True)
    print(f"{found} of {len(chosen)} found (floor {WANTED} of {len(FAULTS)})")
    sys.exit(found < WANTED and len(chosen) == len(FAULTS))


if __name__ == "__main__":
    main()
