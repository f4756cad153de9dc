"""Overhead of a call of an op on small tensors, relative to the formula under PyTorch's autograd.

    python benchmarks/op_cost.py [--json FILE]

One thread and tensors of 8 elements, so that overhead dominates. The two sides of a pair alternate; the figure is the
processor time of the fastest of many rounds. Bounds: a call may cost 10 µs more than the formula, forward and backward
together, and the dispatch between eager mode and all others 1 µs. Stable forms run more kernels than the formula, so
the last row has no bound. The exit status is 1 if a bound is missed. Run it on an idle machine.
"""

import argparse
import json
import sys
import time
import timeit
from pathlib import Path

import torch

import pullback
from pullback._torch import is_plain_eager
from pullback.node import calls as node

ROUNDS, CALLS = 60, 500
BOUND_CALL, BOUND_CHOICE = 10.0, 1.0
UNBOUNDED = "log(1+exp(x)), by rules"


def gate(x):
    return torch.sigmoid(x) * torch.rsqrt(1 + torch.exp(x))


def sine(x):
    return torch.sin(x)


def decay(x, y):
    return x * torch.exp(-y)


def soft(x):
    return torch.log(1 + torch.exp(x))


def clip(x, bound):
    return x.clone()


def straight(x):
    return torch.round(x)


def round_native(x):
    return x + (torch.round(x) - x).detach()


class Clip(torch.autograd.Function):
    """The Function written by hand."""

    @staticmethod
    def forward(ctx, x, bound):
        ctx.bound = bound
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-ctx.bound, ctx.bound), None


clipped = pullback.function(clip)
clipped.vjp(lambda g, out, x, bound: (g.clamp(-bound, bound), None))
rounded = pullback.function(derivative_of=lambda x: x)(straight)


def microseconds(calls, number=CALLS):
    """Return the fastest time of several calls, which alternate."""
    best = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for i, call in enumerate(calls):
            best[i] = min(best[i], timeit.timeit(call, number=number, timer=time.thread_time) / number * 1e6)
    return best


def pairs():
    x, y = (torch.randn(8, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(2))
    return [
        ("sin(x)", pullback.function(sine), sine, (x,)),
        ("sigmoid(x)·rsqrt(1+exp(x)), stable=False", pullback.function(stable=False)(gate), gate, (x,)),
        ("x·exp(−y)", pullback.function(decay), decay, (x, y)),
        ("round, straight through (relaxed)", rounded, round_native, (x,)),
        ("clipped gradient (ruled), beside a Function", clipped, Clip.apply, (x, 0.5)),
        (UNBOUNDED, pullback.function(soft), soft, (x,)),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    node.wait()  # otherwise it is compiled beside what is measured
    (choice,) = microseconds([is_plain_eager], 20 * CALLS)
    print(f"choice between the worlds: {choice:.2f} µs (bound {BOUND_CHOICE:.0f})\n")
    print(f"{'formula':45}{'no grad':>18}{'forward':>18}{'and backward':>18}{'more':>8}   (op / formula, µs)")
    rows, missed = [], choice > BOUND_CHOICE
    for name, op, formula, args in pairs():
        leaves = [a for a in args if isinstance(a, torch.Tensor)]
        g = torch.ones(8)

        def forward(f, args=args):
            return lambda: f(*args)

        def both(f, args=args, leaves=leaves, g=g):
            return lambda: torch.autograd.grad(f(*args), leaves, g)

        with torch.no_grad():
            quiet = microseconds([forward(op), forward(formula)])
        ahead = microseconds([forward(op), forward(formula)])
        whole = microseconds([both(op), both(formula)])
        more = whole[0] - whole[1]
        missed = missed or (name != UNBOUNDED and more > BOUND_CALL)
        cells = "".join(f"{a:>9.1f} /{b:>7.1f}" for a, b in (quiet, ahead, whole))
        print(f"{name:45}{cells}{more:>8.1f}")
        rows.append({"formula": name, "no_grad": quiet, "forward": ahead, "forward_and_backward": whole})
    if options.json:
        options.json.write_text(json.dumps({"choice": choice, "rows": rows}, indent=1))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
