"""Cost of calls of many sizes: a stream of new and repeated lengths in random order.

    python benchmarks/sizes.py [--threads 1|2] [--json FILE] [--write docs/performance.md]

Forward and backward of a formula at 300 lengths, each twice, in random order. Every figure is from a separate process
with empty caches, of Pullback and of `torch.compile` with `dynamic=True`; imports and the first eager call are not
counted. All times are relative to the formula under autograd: *all* is that of the stream, *new* the median of the
calls with a new length, after the first fifty, and *again* that of the others. *Traces* is the number of times that the
formula's Python ran on tensors without values.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from side_by_side import parsed, publish, ratio, table

FORMULAS = {"gate": "σ(x)·rsqrt(1+exp x), n × 32", "rms": "RMSNorm, n × 32", "loss": "mean of (σ(x) − w)², n × 32"}
PEERS = {"op": "op", "inductor": "op, inductor", "compile": "torch.compile, dynamic", "eager": "eager"}
LENGTHS, QUICK_LENGTHS = 300, 12
SETTLED = 50
"""Calls after which a peer is taken to have met what it generalises from."""

CHILD = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import torch

peer, name, threads, lengths = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
torch.set_num_threads(threads)
traces = 0


def gate(x, w):
    return torch.sigmoid(x) * torch.rsqrt(1 + torch.exp(x))


def rms(x, w):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def loss(x, w):
    return (torch.sigmoid(x) - w).square().mean()


formula = {"gate": gate, "rms": rms, "loss": loss}[name]
if peer in ("op", "inductor"):
    import pullback
    from pullback import plans

    make = plans.make_plan

    def counting(*args):
        global traces
        traces += 1
        return make(*args)

    plans.make_plan = counting
    function = pullback.function(backend="auto" if peer == "op" else "inductor")(formula)
elif peer == "compile":
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.config.recompile_limit = 1000
    function = torch.compile(formula, dynamic=True)
else:
    function = formula


def step(function, n):
    x = torch.randn(n, 32, requires_grad=True)
    w = torch.rand(32, requires_grad=name == "rms")
    start = time.perf_counter()
    function(x, w).sum().backward()
    return time.perf_counter() - start


step(formula, 8)
seconds = [step(function, n) for n in lengths]
if peer == "compile":
    traces = counters["stats"]["unique_graphs"]
print(json.dumps({"seconds": seconds, "traces": traces}))
"""


def child(peer: str, name: str, threads: int, lengths: list[int]) -> dict[str, object]:
    """Return the seconds of each call in a new process, and the number of traces."""
    with tempfile.TemporaryDirectory() as folder:  # a formula has to lie in a file to be read
        kept = {"PULLBACK_CACHE_DIR": f"{folder}/pullback", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        kept["PULLBACK_NODE"] = "off"  # it would be compiled beside what is measured
        script = Path(folder, "sizes_of.py")
        script.write_text(CHILD)
        run = [sys.executable, str(script), peer, name, str(threads), json.dumps(lengths)]
        done = subprocess.run(run, env=os.environ | kept, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def stream(count: int) -> list[int]:
    """Return a number of lengths, each twice, in random order."""
    order = random.Random(0)
    lengths = [8 * i + order.randrange(8) + 8 for i in range(count)] * 2
    order.shuffle(lengths)
    return lengths


def summary(seconds: list[float], lengths: list[int]) -> dict[str, float]:
    """Return the time of all calls, and medians of those with a new and with a repeated length."""
    settled = min(SETTLED, len(lengths) // 2)
    is_new = [n not in lengths[:i] for i, n in enumerate(lengths)]
    late = [(s, new) for s, new in zip(seconds, is_new, strict=True)][settled:]
    return {
        "all": sum(seconds),
        "new": median(s for s, new in late if new),
        "again": median(s for s, new in late if not new),
    }


def main() -> None:
    options = parsed(__doc__)
    lengths = stream(QUICK_LENGTHS if options.quick else LENGTHS)
    found = {
        name: {peer: child(peer, name, options.threads, lengths) for peer in PEERS}
        for name in list(FORMULAS)[: 1 if options.quick else None]
    }
    lines = []
    for name, of in found.items():
        times = {peer: summary(run["seconds"], lengths) for peer, run in of.items()}
        for peer in ("op", "inductor", "compile"):
            ratios = [ratio(times[peer][what], times["eager"][what]) for what in ("all", "new", "again")]
            lines.append([f"{FORMULAS[name]}: {PEERS[peer]}", *ratios, str(of[peer]["traces"])])
    head = [f"{len(set(lengths))} lengths, each twice (over eager)", "all", "new", "again", "traces"]
    publish(__file__, options, table(head, lines), found)


if __name__ == "__main__":
    main()
