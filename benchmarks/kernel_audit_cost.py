"""What an audit of Triton kernels on the CPU costs, by the command line.

    python benchmarks/kernel_audit_cost.py [--only TEXT] [--package] [--write docs/kernels_in_the_wild.md]

Audits Functions of Liger-Kernel and flash-linear-attention with all rules, on one core: normalisations and activations
in at most 20 s, attention in at most 60 s. With --package, also all of `liger_kernel.ops` on two cores, in at most 15
minutes. Prints the wall-clock time of the command, that of a Python which only imports the module, and the processor
time of the command. The exit status is 1 if a bound is exceeded. Run it alone. Needs a network, or the packages on the
path, and Triton.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels_in_the_wild import provided, wanted
from side_by_side import in_markdown, place, print_table


@dataclass(frozen=True)
class Subject:
    """What is audited, and the bound on its duration in seconds."""

    target: str
    family: str
    bound: float
    cores: int = 1


_NORM, _ACTIVATION, _ATTENTION = ("normalisation", 20.0), ("activation", 20.0), ("attention", 60.0)
SUBJECTS = (
    Subject("liger_kernel.ops.rms_norm:LigerRMSNormFunction", *_NORM),
    Subject("liger_kernel.ops.layer_norm:LigerLayerNormFunction", *_NORM),
    Subject("liger_kernel.ops.group_norm:LigerGroupNormFunction", *_NORM),
    Subject("liger_kernel.ops.swiglu:LigerSiLUMulFunction", *_ACTIVATION),
    Subject("liger_kernel.ops.geglu:LigerGELUMulFunction", *_ACTIVATION),
    Subject("liger_kernel.ops.dyt:LigerDyTFunction", *_ACTIVATION),
    Subject("fla.ops.attn.parallel:ParallelAttentionFunction", *_ATTENTION),
)
PACKAGE = Subject("liger_kernel.ops", "package", 900.0, cores=2)
_HEADINGS = ("audit", "family", "cores", "seconds", "import", "processor seconds", "bound")


def audited(subject: Subject, path: str) -> tuple[float, float]:
    """Return wall-clock and processor seconds of an audit by the command line."""
    options = ["--jobs", str(subject.cores), "-q", "--fail-on", "never"]
    return _measured(["-m", "pullback", "check", subject.target, *options], path)


def imported(subject: Subject, path: str) -> float:
    """Return the wall-clock seconds of a Python that imports the module of a subject, and nothing else."""
    return _measured(["-c", f"import {subject.target.partition(':')[0]}"], path)[0]


def _measured(arguments: list[str], path: str) -> tuple[float, float]:
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    before, start = _processor_time(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, *arguments], env=environment, cwd=folder, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr[-1000:]}")
    return time.monotonic() - start, _processor_time() - before


def _processor_time() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    """Print a row for each audit; return 1 if one exceeds its bound."""
    options = _options()
    subjects = [s for s in (*SUBJECTS, *([PACKAGE] if options.package else [])) if options.only in s.target]
    cells, late = [], False
    with ExitStack() as stack:
        folders = [stack.enter_context(provided(p)) for p in wanted("liger-kernel,flash-linear-attention")]
        path = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
        for subject in subjects:
            start = imported(subject, path)
            seconds, processor = audited(subject, path)
            late |= seconds > subject.bound
            name = f"`{subject.target.rpartition(':')[2]}`"
            figures = (seconds, start, processor, subject.bound)
            cells.append([name, subject.family, str(subject.cores), *(f"{figure:.0f}" for figure in figures)])
    print_table(_HEADINGS, cells)
    if options.write:
        place(options.write, Path(__file__).name, "\n".join(in_markdown(_HEADINGS, cells, words=("audit", "family"))))
    return int(late)


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="those with this in their name")
    parser.add_argument("--package", action="store_true", help="all of liger_kernel.ops, too")
    parser.add_argument("--write", type=Path, help="update the table of this page")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
