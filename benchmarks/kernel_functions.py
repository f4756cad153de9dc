"""How good the elementary functions of the kernels are: one float after another, against NumPy's float64.

    python benchmarks/kernel_functions.py [--every K] [NAME …]

Every K-th block of 4096 neighbouring floats is tried, all of them by default: a minute or two for each function. The
largest error in ulp, and how many special values (NaN, infinities, signs of zero) are wrong. The exit status is 1 if an
error exceeds 1 ulp, which is SLEEF's own bound, or a special value is wrong.
"""

import argparse
import sys

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pullback.kernels import native, regions
from pullback.kernels.eager import lower

FUNCTIONS = {"exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "sqrt": np.sqrt, "rsqrt": None}
FUNCTIONS |= {"tanh": np.tanh, "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "sin": np.sin, "cos": np.cos}
FUNCTIONS["rsqrt"] = lambda x: 1 / np.sqrt(x)
BLOCK, BOUNDS = 4096, {"rsqrt": 1.5, "sinh": 2.5, "cosh": 2.5}
"""Two roundings, of the root and of its reciprocal; beyond 88, where SLEEF's are infinite, the square of e^(x/2)."""


def kernel_of(name):
    """Return a function of a tensor that runs our kernel of one op."""
    regions._FEWEST = 1
    graph = make_fx(lambda x: [getattr(torch, name)(x)], tracing_mode="fake")(torch.zeros(BLOCK))
    run = lower(native.lowered([graph], [False])[0])
    return lambda x: run(x)[0]


def worst_of(name, every):
    """Return the largest error of a function in ulp, where it is, and how many special values are wrong."""
    run, right = kernel_of(name), FUNCTIONS[name]
    worst, where, wrong = 0.0, 0.0, 0
    for block in range(0, 2**32 // BLOCK, every):
        x = np.arange(block * BLOCK, (block + 1) * BLOCK, dtype=np.uint32).view(np.float32)
        got = run(torch.from_numpy(x)).numpy()
        with np.errstate(all="ignore"):
            exact = right(x.astype(np.float64))
            rounded = exact.astype(np.float32)
        special = ~np.isfinite(rounded) | (rounded == 0) & (exact == 0)
        same = (got == rounded) & (np.signbit(got) == np.signbit(rounded)) | np.isnan(got) & np.isnan(rounded)
        wrong += int((special & ~same).sum())
        ulp = np.maximum(np.spacing(np.abs(rounded[~special])).astype(np.float64), 2.0**-149)
        error = np.abs(got[~special].astype(np.float64) - exact[~special]) / ulp
        if error.size and error.max() > worst:
            worst, where = float(error.max()), float(x[~special][error.argmax()])
    return worst, where, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FUNCTIONS))
    parser.add_argument("--every", type=int, default=1, metavar="K")
    options = parser.parse_args()
    if unknown := set(options.names) - set(FUNCTIONS):
        parser.error(f"no function {', '.join(sorted(unknown))}: {', '.join(FUNCTIONS)}")
    good = True
    for name in options.names or FUNCTIONS:
        worst, where, wrong = worst_of(name, options.every)
        good &= worst <= BOUNDS.get(name, 1.0) and not wrong
        print(f"{name:6} {worst:.3f} ulp at {where:.9g}, {wrong} special values wrong", flush=True)
    return not good


if __name__ == "__main__":
    sys.exit(main())
