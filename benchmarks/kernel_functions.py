"""Accuracy of the kernels' elementary functions: every float against NumPy's float64, doubles against Arb.

    python benchmarks/kernel_functions.py [--every K] [--double N] [--time] [NAME …]

Tries every K-th block of 4096 consecutive floats, by default all, which takes a minute or two for each function. With
`--double`, tries N doubles: random bits, random numbers of all usual magnitudes, and the neighbourhood of the numbers
in HARD; this needs python-flint. Prints the largest error in ulp, and the number of wrong special values (NaN,
infinities, signed zeros). The exit status is 1 if an error exceeds its bound, or a special value is wrong. `--pytorch`
measures PyTorch's kernels in the same way, without a bound. `--time` prints instead the nanoseconds per 16 numbers in
float32 and in float64, without the constant cost of a call.

ATEN_CPU_CAPABILITY=avx2 selects the AVX2 kernels on a processor with AVX-512.
"""

import argparse
import math
import sys
import time

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pullback.kernels import native, regions
from pullback.kernels.eager import lower
from pullback.ops.registry import OPS

FUNCTIONS = {"exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "sqrt": np.sqrt, "rsqrt": None}
FUNCTIONS |= {
    "tanh": np.tanh,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "sin": np.sin,
    "cos": np.cos,
    "atan": np.arctan,
}
SPECIAL = ("erf", "erfc", "erfcx", "log_ndtr", "ndtri", "i0", "i0e", "i1", "i1e")


def by_torch(name):
    """Return PyTorch's function as one of arrays."""
    return lambda x: getattr(torch.special, name)(torch.from_numpy(x)).numpy()


FUNCTIONS |= {name: by_torch(name) for name in SPECIAL}
FUNCTIONS["rsqrt"] = lambda x: 1 / np.sqrt(x)
BLOCK, BOUNDS = 4096, {"rsqrt": 1.5, "sinh": 1.1, "erf": 1.1, "erfc": 1.4, "sin": 1.1, "cos": 1.1, "atan": 1.4}
BOUNDS |= {"erfcx": 2.5, "log_ndtr": 4.2, "ndtri": 3.3, "i0": 4.0, "i0e": 4.0, "i1": 4.0, "i1e": 3.8}  # of doubles
"""Bounds in ulp: two roundings, of the root and of its reciprocal. The others have SLEEF's bound of 1 ulp."""
HARD = {"exp": (0.35, -708.5, 709.0), "expm1": (0.35, -1.0, 36.0), "log": (0.75, 1.0, 1.5), "log1p": (-0.5, 0.5, 1.0)}
HARD |= {
    "sinh": (0.35, 1.0, 709.0),
    "cosh": (0.01, 0.35, 709.0),
    "tanh": (0.17, 0.5, 10.0),
    "erf": (0.5, 1.0, 2.0),
    "erfc": (0.75, 1.5, 26.0),
    "sin": (0.79, 3.14159265, 1e8),
    "cos": (0.79, 1.57079633, 1e8),
    "atan": (0.9, 1.0, 1.1),
    "erfcx": (-26.6, -1.0, 3.75),
    "log_ndtr": (-1.0, 1e-3, 5.0),
    "ndtri": (0.075, 0.5, 0.925),
    "i0": (8.0, 3.0, 713.0),
    "i0e": (8.0, 3.0, 700.0),
    "i1": (8.0, 3.0, 713.0),
    "i1e": (8.0, 3.0, 700.0),
}
"""Points near which errors are large: ends of the pieces of functions."""


def lowered_of(name, dtype, size):
    """Return the kernel of one op, as a function of a tensor of some size."""
    regions.FEWEST = 1
    example = torch.zeros(size, dtype=dtype)
    function = getattr(torch.special if name in SPECIAL else torch, name)
    graph = make_fx(lambda x: [function(x)], tracing_mode="fake")(example)
    return lower(native.lowered([graph], [False])[0])


def kernel_of(name, dtype=torch.float32):
    """Return the kernel of one op, as a function of arrays of blocks."""
    run = lowered_of(name, dtype, BLOCK)
    return lambda x: np.concatenate([run(block)[0].numpy() for block in torch.from_numpy(x).split(BLOCK)])


def pytorch_of(name, dtype=torch.float32):
    """Return PyTorch's function of arrays, in a dtype."""
    function = getattr(torch.special if name in SPECIAL else torch, name)
    return lambda x: function(torch.from_numpy(x).to(dtype)).numpy()


def log_ndtr(a):
    """Return the ball of log Φ(a), in which no digits of a tail cancel."""
    from flint import arb

    tail = OPS["erfc"].ball(abs(a) / arb(2).sqrt()) / 2
    return (-tail).log1p() if a > 0 else tail.log()


EXACT = {"log_ndtr": log_ndtr}
"""Exact values of functions that are no ops of terms."""


ENDS = {
    "i0": lambda x: np.where(x == 0, 1.0, np.inf),
    "i1": lambda x: x,
    "i1e": lambda x: np.copysign(0.0, x),
}
"""Values at zeros and infinities that PyTorch's kernels have as 0 or NaN."""


def right_of(name, x):
    """Return the values of a function in float64."""
    value = FUNCTIONS[name](x)
    return np.where((x == 0) | np.isinf(x), ENDS[name](x), value) if name in ENDS else value


def wrong_ones(got, rounded, special):
    """Count wrong special values, including signs of zeros."""
    same = (got == rounded) & (np.signbit(got) == np.signbit(rounded)) | np.isnan(got) & np.isnan(rounded)
    return int((special & ~same).sum())


def worst_of(name, every, kernel=kernel_of):
    """Return the largest error of a function in ulp, its point, and the number of wrong special values."""
    run = kernel(name)
    worst, where, wrong = 0.0, 0.0, 0
    for block in range(0, 2**32 // BLOCK, every):
        x = np.arange(block * BLOCK, (block + 1) * BLOCK, dtype=np.uint32).view(np.float32)
        got = run(x)
        with np.errstate(all="ignore"):
            exact = right_of(name, x.astype(np.float64))
            rounded = exact.astype(np.float32)
        special = ~np.isfinite(rounded) | (rounded == 0) & (exact == 0)
        wrong += wrong_ones(got, rounded, special)
        ulp = np.maximum(np.spacing(np.abs(rounded[~special])).astype(np.float64), 2.0**-149)
        error = np.nan_to_num(np.abs(got[~special].astype(np.float64) - exact[~special]) / ulp, nan=np.inf)
        if error.size and error.max() > worst:
            worst, where = float(error.max()), float(x[~special][error.argmax()])
    return worst, where, wrong


def doubles(name, count):
    """Return random doubles of a few kinds, the same in every run."""
    random = np.random.default_rng(0)
    several = [random.integers(0, 2**64, count // 4, dtype=np.uint64).view(np.float64)]
    several += [random.normal(0, 3, count // 4)]
    several += [random.choice([-1, 1], count // 4) * 2 ** random.uniform(-60, 10, count // 4)]
    several += [at * random.uniform(0.99, 1.01, count // 12) for at in HARD[name]]
    special = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 5e-324, -5e-324, 1.7e308, -1e17, 1e-300]
    x = np.concatenate([special, *several])
    return np.resize(x, -(-len(x) // BLOCK) * BLOCK)


def worst_double_of(name, count, kernel=kernel_of):
    """Return what `worst_of` does, for some doubles."""
    from flint import arb, ctx

    ctx.prec = 140
    x = doubles(name, count)
    got = kernel(name, torch.float64)(x)
    with np.errstate(all="ignore"):
        rounded = right_of(name, x)
    exact = EXACT.get(name) or OPS[name].ball
    if name in SPECIAL:  # PyTorch's overflow early
        balls = [exact(arb(at)) if math.isfinite(at) and at else arb("nan") for at in x.tolist()]
        known = np.array([ball.is_finite() and ball.rel_accuracy_bits() > 60 for ball in balls])
        rounded = np.where(known, list(map(float, balls)), rounded)
    special = ~np.isfinite(rounded) | (rounded == 0)
    wrong = wrong_ones(got, rounded, special)
    worst, where = 0.0, 0.0
    for at, y, near in zip(x[~special].tolist(), got[~special].tolist(), rounded[~special].tolist(), strict=True):
        error = abs(float((arb(y) - exact(arb(at))) / math.ulp(near))) if math.isfinite(y) else math.inf
        if error > worst:
            worst, where = error, at
    return worst, where, wrong


def nanoseconds_of(name, dtype):
    """Return the time of 16 more numbers, without the constant cost of a call; all data is in the cache."""
    runs = {n: lowered_of(name, dtype, n) for n in (BLOCK, 4 * BLOCK)}
    best = dict.fromkeys(runs, math.inf)
    for _ in range(2000):
        for n, run in runs.items():
            x = torch.linspace(0.01, 8, n, dtype=dtype)
            start = time.perf_counter()
            run(x)
            best[n] = min(best[n], time.perf_counter() - start)
    return (best[4 * BLOCK] - best[BLOCK]) * 1e9 / (3 * BLOCK / 16)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FUNCTIONS))
    parser.add_argument("--every", type=int, default=1, metavar="K")
    parser.add_argument("--double", type=int, metavar="N")
    parser.add_argument("--pytorch", action="store_true")
    parser.add_argument("--time", action="store_true")
    options = parser.parse_args()
    known = HARD if options.double else FUNCTIONS
    if unknown := set(options.names) - set(known):
        parser.error(f"no function {', '.join(sorted(unknown))}: {', '.join(known)}")
    if options.time:
        for name in options.names or known:
            float32, float64 = (nanoseconds_of(name, dtype) for dtype in (torch.float32, torch.float64))
            print(f"{name:6} {float32:5.1f} {float64:5.1f}", flush=True)
        return 0
    good, kernel = True, pytorch_of if options.pytorch else kernel_of
    for name in options.names or known:
        count = options.double
        worst, where, wrong = worst_double_of(name, count, kernel) if count else worst_of(name, options.every, kernel)
        good &= options.pytorch or (worst <= BOUNDS.get(name, 1.0) and not wrong)
        print(f"{name:6} {worst:.3f} ulp at {where:.17g}, {wrong} special values wrong", flush=True)
    return not good


if __name__ == "__main__":
    sys.exit(main())
