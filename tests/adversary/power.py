"""How many of the faults of `faults.py` the fuzz finds: `python -m tests.adversary.power --minutes 10`.

Each fault is put into a copy of the library, on which the fuzz then runs for some minutes, until it finds something
that is right in the library as it is.
"""

import argparse
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pullback
from tests.adversary.faults import FAULTS, Fault
from tests.adversary.fuzz import run

PACKAGE = Path(pullback.__file__).parent
WANTED = math.ceil(0.9 * len(FAULTS))


def finds(fault: Fault, minutes: float, jobs: int, seed: int) -> float | None:
    """Return after how many seconds a fault is found; `None` if it is not."""
    with tempfile.TemporaryDirectory(prefix="fault-") as folder:
        shutil.copytree(PACKAGE, Path(folder) / "pullback", ignore=shutil.ignore_patterns("__pycache__"))
        fault.put_into(Path(folder) / "pullback")
        began, before = time.monotonic(), os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{folder}:{Path.cwd()}"
        try:
            for line in run(minutes, seed, jobs, ["native, g++", "eager"], shrink=False, trials=40):
                if line.startswith("FOUND") and is_right_without(line):
                    return time.monotonic() - began
        finally:
            os.environ["PYTHONPATH"] = before or str(PACKAGE.parent)
    return None


def is_right_without(found: str) -> bool:
    """Whether the program of a finding passes in the library as it is."""
    program = found[found.rindex("from tests.adversary.agree") :]
    environment = {**os.environ, "PYTHONPATH": f"{PACKAGE.parent}:{Path.cwd()}"}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True).returncode == 0


def main() -> None:
    """Print which faults are found, and end with 1 if they are too few."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="faults whose names hold this")
    options = parser.parse_args()
    chosen = [fault for fault in FAULTS if options.only in fault.name]
    found = 0
    for i, fault in enumerate(chosen):
        seconds = finds(fault, options.minutes, options.jobs, options.seed + 10**6 * i)
        found += seconds is not None
        print(f"{fault.name}: {'not found' if seconds is None else f'{seconds:.0f} s'}", flush=True)
    print(f"{found} of {len(chosen)} found (floor {WANTED} of {len(FAULTS)})")
    sys.exit(found < WANTED and len(chosen) == len(FAULTS))


if __name__ == "__main__":
    main()
