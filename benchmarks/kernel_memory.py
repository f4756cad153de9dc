"""Bytes of the residuals of a forward, and growth of a process over many calls.

    python benchmarks/kernel_memory.py [--calls N] [--json FILE] [--write docs/performance.md]

Saved-tensor hooks count the distinct storages that autograd saves: all, and those that are neither an input nor the
output, which the caller often holds anyway. `torch.compile` is counted on its compiled graphs. Growth is that of the
resident memory of a separate process, over calls with their backward, after a tenth as many to warm up.
"""

from __future__ import annotations

import argparse
import multiprocessing
import warnings
from collections.abc import Callable, Sequence
from statistics import median

import torch
from formulas import CASES, KEEPING, Case
from op_leaks import BOUND, resident
from side_by_side import parsed, publish, ratio, table, with_caches_of_its_own
from torch import Tensor

N = 2**16
LASTING = ("σ(x)·rsqrt(1+exp x)", "SwiGLU", "LSQ", "RMSNorm")
Kept = tuple[int, int]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calls", type=int, default=100_000)


def kept(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Kept:
    """Return the bytes that a call saves: all, and those of neither inputs nor outputs."""
    storages: dict[int, int] = {}
    alive = []  # or another tensor may take the address of a freed one

    def pack(t: Tensor) -> Tensor:
        alive.append(t)
        storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = function(*inputs)
    around = {t.untyped_storage().data_ptr() for t in (*inputs, out)}
    return sum(storages.values()), sum(size for at, size in storages.items() if at not in around)


def measured(case: Case, device: str, quick: bool) -> dict[str, Kept]:
    inputs = case.inputs(2**10 if quick else N, device)
    functions = {"op": case.op(), "eager": case.eager, "hand": case.hand.apply}
    if not quick:
        torch._dynamo.reset()
        functions["compile"] = torch.compile(case.eager, fullgraph=True, dynamic=False)
    found = {}
    for name, function in functions.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*inputs).sum().backward()  # made once; hooks would see the tracing
        found[name] = kept(function, inputs)
    return found


def grown(name: str, calls: int, threads: int, queue: multiprocessing.Queue) -> None:
    """Put into a queue the bytes by which the process grows over some calls of an op."""
    torch.set_num_threads(threads)
    case = next(case for case in CASES if case.name == name)
    op, inputs = case.op(), case.inputs(64, "cpu")
    leaves = [x for x in inputs if x.requires_grad]

    def call(n: int) -> None:
        for _ in range(n):
            torch.autograd.grad(op(*inputs).sum(), leaves)

    call(max(10, calls // 10))
    before = resident()
    call(calls)
    queue.put(resident() - before)


def growth(calls: int, threads: int) -> dict[str, int]:
    found = {}
    context = multiprocessing.get_context("spawn")  # threads of OpenMP do not survive a fork
    for name in LASTING:
        queue = context.Queue()
        child = context.Process(target=grown, args=(name, calls, threads, queue))
        child.start()
        found[name] = queue.get()
        child.join()
    return found


def shown(rows: dict[str, dict[str, Kept]], grew: dict[str, int], calls: int) -> str:
    """Return the tables."""
    lines = []
    over: dict[str, list[float]] = {"eager": [], "compile": []}
    for name, of in rows.items():
        for peer, found in over.items():
            if peer in of:
                found.append(of["op"][0] / of[peer][0])
        cells = [ratio(of["op"][0], of[peer][0]) if peer in of else "–" for peer in ("eager", "compile", "hand")]
        beyond = [f"{of[peer][1] / 1024:.0f}" if peer in of else "–" for peer in ("op", "eager", "compile", "hand")]
        lines.append([name, *cells, " / ".join(beyond)])
    middle = [f"{median(found):.2f}, {max(found):.2f}" if found else "–" for found in over.values()]
    lines.append(["median, worst (floor 0.5; 1.0)", *middle, "", ""])
    head = ["bytes kept for the backward", "op / eager", "op / compile", "op / hand"]
    head.append("KiB beyond inputs and output: op / eager / compile / hand")
    more = [[name, f"{size / 1024:.0f}"] for name, size in grew.items()]
    bound = f"KiB more (floor 0, within {BOUND // 1024} of noise)"
    return table(head, lines) + "\n\n" + table([f"growth over {calls} calls", bound], more)


def main() -> None:
    options = parsed(__doc__, arguments)
    with with_caches_of_its_own():
        calls = 200 if options.quick else options.calls
        rows = {case.label: measured(case, options.device, options.quick) for case in KEEPING}
        grew = {} if options.quick else growth(calls, options.threads)
        publish(__file__, options, shown(rows, grew, calls), {"kept": rows, "grown": grew, "calls": calls})


if __name__ == "__main__":
    main()
