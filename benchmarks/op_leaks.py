"""Memory growth over a hundred thousand calls of ops of every kind.

    python benchmarks/op_leaks.py [--calls N] [--json FILE]

Each kind runs in a process of its own, with its backward: a tenth of the calls to warm up, then N calls, with the
garbage collector enabled. The exit status is 1 if the process has grown by more than 1 MiB, ten bytes a call, or has
more tensors or classes than before.
"""

import argparse
import collections
import gc
import json
import multiprocessing
import sys
from pathlib import Path

import torch

import pullback
from pullback.node import calls as node

PAGE = 4096
BOUND = 2**20


def wave(x, y):
    return torch.sin(x) * y.exp()


derived = pullback.function(wave)
inline = pullback.function(lambda x, y: torch.sin(x).mul_(y))
contained = pullback.function(lambda pair, scale: {"sum": pair[0] + pair[1] * scale, "product": pair[0] * pair[1]})
relaxed = pullback.function(derivative_of=wave)(lambda x, y: torch.sign(x) * y)
ruled = pullback.function(lambda x, y: x * y)
ruled.vjp(lambda g, out, x, y: (g * y, g * x))


def pair():
    return torch.randn(64, requires_grad=True), torch.randn(64, requires_grad=True)


def once(op):
    op(*pair()).sum().backward()


def twice(op):
    x, y = pair()
    (gx,) = torch.autograd.grad(op(x, y).sum(), x, create_graph=True)
    torch.autograd.grad(gx.sum(), y)


def in_containers(x, y):
    return contained([x, y], scale=3.0)["product"]


CASES = {
    "PyTorch alone": (once, wave),
    "derived": (once, derived),
    "derived, second order": (twice, derived),
    "derived, inline": (once, inline),
    "derived, containers": (once, in_containers),
    "relaxed": (once, relaxed),
    "ruled": (once, ruled),
    "ruled, second order": (twice, ruled),
}


def resident():
    """Return the resident set size of this process in bytes (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def census():
    gc.collect()
    kinds = collections.Counter(map(type, gc.get_objects()))
    return [sum(n for kind, n in kinds.items() if issubclass(kind, c)) for c in (torch.Tensor, type)]


def measure(name, calls, queue):
    torch.set_num_threads(1)
    way, op = CASES[name]
    for _ in range(calls // 10):
        way(op)
    before, size = census(), resident()
    for _ in range(calls):
        way(op)
    queue.put((resident() - size, census() == before))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows, missed = [], False
    node.wait()  # so that it is what is measured
    for name in CASES:
        queue = multiprocessing.Queue()
        child = multiprocessing.Process(target=measure, args=(name, options.calls, queue))
        child.start()
        grown, same = queue.get()
        child.join()
        missed = missed or grown > BOUND or not same
        print(f"{name:25}{grown / 1024:>8.0f} KiB more after {options.calls} calls{'' if same else ', and objects'}")
        rows.append({"op": name, "bytes": grown, "same_objects": same})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
