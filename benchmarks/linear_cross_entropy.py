"""Linear + cross-entropy over a large vocabulary: peak memory and time, relative to eager PyTorch.

    python benchmarks/linear_cross_entropy.py [--chunk ROWS] [--json FILE] [--write docs/performance.md]

The formula is two lines, and the logits are large. Every measurement runs in a process of its own, with the peers
alternating. Memory is the increase of the largest resident set (`ru_maxrss`) by a first forward and backward, after a
call of tiny sizes has loaded the libraries; on CUDA, that of `max_memory_allocated`. It includes the gradients. Time is
that of a later call, the median of the processes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
from statistics import median

import torch
import torch.nn.functional as F
from formulas_by_hand import LinearCrossEntropy
from op_leaks import resident
from side_by_side import parsed, publish, ratio, table, with_caches_of_its_own
from torch import Tensor
from torch.utils.benchmark import Timer

import pullback

ROWS, HIDDEN, VOCABULARY = 2048, 256, 32768
PROCESSES = 5
CHUNKED = "F.linear_cross_entropy, chunked"
MEMORY, TIME = (0.35, 0.2), (1.3, 1.0)
"""Floor and goal."""


def loss(x: Tensor, w: Tensor, k: Tensor) -> Tensor:
    logits = x @ w.t()
    return F.cross_entropy(logits, k)


def function_of(peer: str, chunk: int):
    if peer == "op":
        return pullback.function(chunk=chunk)(loss)
    if peer == "compile":
        return torch.compile(loss, fullgraph=True)
    if peer == CHUNKED:  # of PyTorch 2.13 or newer; for one backward, once
        options = torch.nn.LinearCrossEntropyOptions()
        return lambda x, w, k: F.linear_cross_entropy(x, w, k, options=options)
    return {"eager": loss, "hand": LinearCrossEntropy.apply}[peer]


def tensors(rows: int, hidden: int, vocabulary: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, hidden, generator=random).div_(hidden**0.25) for n in (rows, vocabulary))
    k = torch.randint(vocabulary, (rows,), generator=random)
    return x.to(device).requires_grad_(), w.to(device).requires_grad_(), k.to(device)


def peak(device: str) -> int:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # KiB, on Linux


def measure(peer: str, options: argparse.Namespace, queue: multiprocessing.Queue) -> None:
    """Put the bytes and the seconds of one peer into a queue."""
    torch.set_num_threads(options.threads)
    function = function_of(peer, options.chunk)

    def call(x: Tensor, w: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(function(x, w, k), (x, w))

    sizes = (64, 32, 512) if options.quick else (ROWS, HIDDEN, VOCABULARY)
    call(*tensors(32, 16, 128, options.device))
    if peer == "compile":  # its compiler must not count; sizes are dynamic from the second on
        call(*tensors(48, 24, 192, options.device))
    given = tensors(*sizes, options.device)
    before = torch.cuda.memory_allocated() if options.device == "cuda" else resident()
    call(*given)
    memory = peak(options.device) - before
    timer = Timer("call()", globals={"call": lambda: call(*given)}, num_threads=options.threads)
    queue.put((memory, timer.timeit(1).median))  # after two calls to warm up


def measured(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    peers = ["op", "eager", "hand", *([CHUNKED] if hasattr(torch.nn, "LinearCrossEntropyOptions") else [])]
    peers += [] if options.quick else ["compile"]
    context, runs = multiprocessing.get_context("spawn"), {peer: [] for peer in peers}
    for _ in range(1 if options.quick else PROCESSES):
        for peer in peers:
            queue = context.Queue()
            child = context.Process(target=measure, args=(peer, options, queue))
            child.start()
            runs[peer].append(queue.get())
            child.join()
    return {peer: {"bytes": median(b for b, _ in of), "seconds": median(s for _, s in of)} for peer, of in runs.items()}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--chunk", type=int, default=128, help="number of rows in a chunk of the op")


def main() -> None:
    options = parsed(__doc__, arguments)
    with with_caches_of_its_own():
        found = measured(options)
    eager = found["eager"]
    lines = [
        [peer, ratio(of["bytes"], eager["bytes"]), ratio(of["seconds"], eager["seconds"])] for peer, of in found.items()
    ]
    head = [
        f"{ROWS} rows, vocabulary {VOCABULARY}",
        f"peak memory / eager (floor {MEMORY[0]}; goal {MEMORY[1]})",
        f"time / eager (floor {TIME[0]}; goal {TIME[1]})",
    ]
    publish(__file__, options, table(head, lines), found)


if __name__ == "__main__":
    main()
