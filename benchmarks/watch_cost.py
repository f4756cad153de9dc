"""Overhead of `pullback run` on a training step.

    python benchmarks/watch_cost.py [--json FILE]

A small network with a custom activation, one thread. Plain and watched training steps alternate; the figure is the
processor time of the fastest of many rounds. A watched step may take 5 % longer, after the first hundred, which copy
some inputs and have a figure of their own. The activation alone on 8 elements is the worst case, without a bound. The
exit status is 1 if the bound is missed. Run it on an idle machine.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from pullback.check.options import make_options
from pullback.check.watch import Watch

ROUNDS, STEPS, WIDTH, ROWS, LAYERS = 60, 20, 64, 64, 4
BOUND = 1.05


class Swish(torch.autograd.Function):
    """The activation of the network."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * s * (1 + x * (1 - s))


class Layer(torch.nn.Module):
    """A linear layer and the activation."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return Swish.apply(self.linear(x))


def training():
    """Return a training step."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(*(Layer() for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    x = torch.randn(ROWS, WIDTH)

    def step():
        optimizer.zero_grad()
        network(x).square().mean().backward()
        optimizer.step()

    return step


def activation():
    """Return forward and backward of the activation alone."""
    x = torch.randn(8, requires_grad=True)
    g = torch.ones(8)
    return lambda: torch.autograd.grad(Swish.apply(x), x, g)


def seconds(call, number=STEPS):
    """Return the processor time of a call."""
    start = time.process_time()
    for _ in range(number):
        call()
    return (time.process_time() - start) / number


def measured(call, number):
    """Return the seconds of a plain call, a watched one from the first call on, and a watched one later."""
    watch = Watch(make_options((), (), 0, 1.0, False))
    seconds(call, number)
    watch.start()
    first = seconds(call, 25)
    seconds(call, 100)
    watch.stop()
    plain, later = float("inf"), float("inf")
    for _ in range(ROUNDS):
        plain = min(plain, seconds(call, number))
        watch.start()
        later = min(later, seconds(call, number))
        watch.stop()
    return plain, first, later


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name, call, number in (("training step", training(), STEPS), ("activation, 8 elements", activation(), 500)):
        plain, first, later = measured(call, number)
        found[name] = {"plain": plain, "first": first / plain, "later": later / plain}
        print(f"{name}: {1e6 * plain:.1f} µs; watched {later / plain:.3f} times that, at first {first / plain:.2f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return int(found["training step"]["later"] > BOUND)


if __name__ == "__main__":
    sys.exit(main())
