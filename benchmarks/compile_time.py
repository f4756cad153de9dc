"""Duration of the first call: with empty caches, and in a second process with warm ones.

    python benchmarks/compile_time.py [--repeat N] [--json FILE] [--write docs/performance.md]

Each figure is a median over separate processes that run forward and backward of a formula at 2^12 elements, Pullback
and `torch.compile` alternating. `import torch` is not counted on either side; `import pullback` is. A first compilation
in an empty cache also builds the precompiled headers of Inductor and of Pullback, so a second formula in the same
process has a figure of its own. The first call in a second process is split into import, the import of Dynamo (which
PyTorch's tracer needs), creation of the op, stable forms, trace and derivation, and loading of the kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from side_by_side import parsed, publish, ratio, table

FORMULAS = ("gate", "gelu")
COLD, WARM = (0.4, 0.15), (1.5, 0.5)
"""Floor and goal: cold time relative to `torch.compile`, warm time in seconds."""

PARTS = ("Dynamo", "the op", "stable forms", "trace", "kernels")

CHILD = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import torch

torch.set_num_threads(int(sys.argv[2]))
taken, before_first = {}, []


def timed(what, function):
    def call(*args, **kwargs):
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            taken[what] = taken.get(what, 0) + time.perf_counter() - start
    return call


def watch(owner, name, what):
    setattr(owner, name, timed(what, getattr(owner, name)))


def ours():
    import pullback.plan, pullback.stable.lookup, pullback.kernels.native
    before_first.append(timed("Dynamo", pullback._torch.import_dynamo))
    watch(pullback.stable.lookup.StableForms, "_look_up", "stable forms")
    watch(pullback.plan, "facts_of", "trace")
    watch(pullback.plan, "joint_of", "trace")
    watch(pullback.plan, "lower", "kernels")
    return pullback.function


def theirs():
    return lambda formula: torch.compile(formula, fullgraph=True)


def first_call(make, formula):
    x = torch.randn(4096).requires_grad_()
    while before_first:
        before_first.pop()()
    op = timed("the op", make)(formula)
    op(x).sum().backward()


def gate(x):
    return torch.sigmoid(x) * torch.rsqrt(1 + torch.exp(x))


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x * 0.7071067811865476))


make = timed("import", {"op": ours, "compile": theirs}[sys.argv[1]])()
timed("gate", first_call)(make, gate)
parts = dict(taken)  # of the first formula
timed("gelu", first_call)(make, gelu)
print(json.dumps({**parts, "gelu": taken["gelu"]}))
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeat", type=int, default=5)


def child(peer: str, cache: Path, threads: int) -> dict[str, float]:
    """Return the seconds that each part of the first calls takes in a new process."""
    kept = {"PULLBACK_CACHE_DIR": str(cache / "pullback"), "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor")}
    kept["PULLBACK_NODE"] = "off"  # it would be compiled beside what is measured next
    with tempfile.TemporaryDirectory() as folder:  # a formula has to lie in a file to be read
        script = Path(folder, "first_calls.py")
        script.write_text(CHILD)
        run = [sys.executable, str(script), peer, str(threads)]
        done = subprocess.run(run, env=os.environ | kept, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def measured(repeat: int, threads: int) -> dict[str, dict[str, dict[str, float]]]:
    """Return medians, for each peer, cold and warm."""
    peers, states = ("op", "compile"), ("cold", "warm")
    found = {(peer, state): [] for peer in peers for state in states}
    for _ in range(repeat):
        for peer in peers:
            with tempfile.TemporaryDirectory() as cache:
                for state in states:
                    found[peer, state].append(child(peer, Path(cache), threads))
    return {
        peer: {
            state: {what: median(run.get(what, 0) for run in found[peer, state]) for what in found[peer, state][0]}
            for state in states
        }
        for peer in peers
    }


def main() -> None:
    options = parsed(__doc__, arguments)
    found = measured(1 if options.quick else options.repeat, options.threads)
    lines = []
    for state, bars in (("cold", COLD), ("warm", ("", ""))):
        for formula, what in zip(FORMULAS, ("first formula", "next formula"), strict=True):
            ours, theirs = (found[peer][state][formula] for peer in ("op", "compile"))
            lines.append([f"{state}, {what}", ratio(ours, theirs), *map(str, bars)])
    shown = table(["first call, over `torch.compile`'s", "ratio", "floor", "goal"], lines)
    warm = found["op"]["warm"]
    whole = warm["import"] + warm["gate"]
    parts = {"import": warm["import"], **{what: warm[what] for what in PARTS}}
    parts["rest"] = whole - sum(parts.values())
    cells = [f"{100 * seconds / whole:.0f} %" for seconds in parts.values()]
    verdict = "goal met" if whole <= WARM[1] else "floor met" if whole <= WARM[0] else "missed"
    head = [f"second process, first call (floor {WARM[0]} s, goal {WARM[1]} s)", *parts]
    shown += "\n\n" + table(head, [[verdict, *cells]])
    print(f"second process: {whole:.2f} s", file=sys.stderr)
    publish(__file__, options, shown, found)


if __name__ == "__main__":
    main()
