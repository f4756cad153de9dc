"""Comparison of the errors of ops with those of their formulas in native PyTorch, point by point.

    python benchmarks/worse.py [--points 4000] [--seed 1] [--only gelu] [--backend native] [--json FILE] [--write PAGE]

The formulas are the 25 of one variable and the 20 of several of `accuracy_formulas.py`, and the losses and activations
below. Each is measured as an op without certificates, on the native and on the eager backend, and as written: value,
first and second derivatives in float32, at random points (`accuracy_points.py`; the seed is printed, and random unless
it is given) and in the neighbourhood of every root, against exact values from ball arithmetic. A spurious NaN or
infinity is an infinite error, a spurious zero one of 2²⁴ ulp; points whose exact value is below the normal numbers do
not count.

The table pools the points of all formulas: percentiles of the errors, and the share of points at which the op is more
than 4 ulp worse or better than the formula as written. Cancellation magnifies the last bit of `exp`, which is
effectively random in both, so even a formula that stays as written can be worse at one point and better at the next.
*New NaN, ∞* are spurious ones where the formula as written has none. The last column counts quantities with a point
that is more than 4 ulp worse.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accuracy_formulas import ABOVE_0, FORMULAS, SEVERAL, Case
from accuracy_points import fresh
from quick_rules import replace_table

import pullback
from pullback.ops.constants import VALUES
from pullback.stable.certificate import label
from pullback.stable.derivative import derivative
from pullback.stable.formula import Formula, Quantity
from pullback.stable.measure import errors
from pullback.stable.oracle.values import exact
from pullback.stable.sampling import samples_at
from pullback.stable.singularities import critical_points, samples_around
from pullback.stable.term import parse, variables

MORE = (
    Case("Laplace activation", "0.5*(1+erf((x-0.707107)/0.398942))"),
    Case("pseudo-Huber", "1.5*(sqrt((x/1.5)*(x/1.5)+1)-1)"),
    Case("pseudo-Huber, quotient", "x*x/(sqrt(x*x+2.25)+1.5)"),
    Case("rational", "x/sqrt(1+x*x)"),
    Case("squareplus", "(x+sqrt(x*x+4))/2"),
    Case("Geman-McClure", "x*x/(1+x*x)"),
    Case("Welsch", "1-exp(-x*x/2)"),
    Case("Cauchy", "log(1+x*x)"),
    Case("log-cosh, softplus", "x+log(1+exp(-2*x))-LN2"),
    Case("x - softplus", "x-log(1+exp(x))"),
    Case("x - log", "x-log(x)", {"x": ABOVE_0}),
    Case("tanh(x)/x", "tanh(x)/x"),
    Case("log1p(x)/x", "log(1+x)/x"),
    Case("log(x)/(x-1)", "log(x)/(x-1)", {"x": ABOVE_0}),
    Case("Bernoulli", "x/(exp(x)-1)"),
    Case("silu, quotient", "x/(1+exp(-x))"),
    Case("exp difference", "exp(x)-exp(-x)"),
    Case("third order", "exp(x)-1-x-x*x/2"),
    Case("sin difference", "x-sin(x)"),
    Case("logistic slope", "exp(-x)/((1+exp(-x))*(1+exp(-x)))"),
)
BACKENDS = ("native", "eager")
FAR, ZERO = 4.0, 2.0**24
PERCENTILES = (50, 90, 95)
MARKERS = "<!-- benchmarks/worse.py: begin -->", "<!-- benchmarks/worse.py: end -->"


@dataclass
class Compared:
    """Errors of one quantity at the points where its exact value is a normal number, in ulp."""

    formula: str
    target: str
    order: int
    ours: dict[str, list[float]]
    written: list[float]


def functions(cases: Sequence[Case], folder: str = "worse") -> dict[Case, Callable[..., Any]]:
    """Return formulas as functions of a module without a file of certificates."""
    lines = [f"def f{i}({', '.join(variables(parse(c.text)))}): return {c.text}" for i, c in enumerate(cases)]
    scope: dict[str, Any] = {**vars(torch), **VALUES, "__name__": folder}
    exec("\n".join(lines), scope)
    return {case.name: scope[f"f{i}"] for i, case in enumerate(cases)}


def compared(case: Case, function: Callable[..., Any], backends: Sequence[str], count: int, seed: int) -> Iterator[Any]:
    """Yield every quantity of a formula with the errors of its op and of native PyTorch."""
    term = parse(case.text)
    names = variables(term)
    ops = {backend: Formula(pullback.function(backend=backend)(function)) for backend in backends}
    written = Formula(function)
    for by in (by for order in range(3) for by in combinations_with_replacement(names, order)):
        target = term
        for name in by:
            target = derivative(target, name)
        at = samples_at(target, fresh(names, case.domain, count, seed))
        if len(names) == 1:
            places = critical_points(target, names[0], at, torch.float32)
            at = (
                at.merged_with(samples_around(target, names, places, torch.float32, seed, case.domain))
                if places
                else at
            )
        (truth,) = exact([target], at.points)
        tensors = list(at.tensors(torch.float32).values())
        quantity = Quantity(0, by)
        theirs, normal = errors_of(written, tensors, quantity, truth)
        ours = {backend: errors_of(op, tensors, quantity, truth)[0][normal].tolist() for backend, op in ops.items()}
        yield Compared(case.name, label(by), len(by), ours, theirs[normal].tolist())


def errors_of(formula: Formula, tensors: Sequence[Any], quantity: Quantity, truth: Any) -> tuple[Any, Any]:
    """Return errors at points, and a mask of the points that count."""
    found = errors(formula.run(tensors, len(quantity.by))[quantity], truth)
    ulp = np.where(found.zero, ZERO, np.where(found.nan | found.inf, np.inf, found.ulp))
    return ulp, ~(found.subnormal | found.undefined | found.undecided)


def lines(all_of: Sequence[Compared]) -> Iterator[str]:
    """Yield the table."""
    yield (
        "| quantities | backend | points | 50 % | 90 % | 95 % | > 4 ulp worse | > 4 ulp better "
        "| new NaN, ∞ | fewer NaN, ∞ | quantities |"
    )
    yield "| -- | -- |" + " --: |" * 9
    for order, name in enumerate(("values", "first derivatives", "second derivatives")):
        some = [c for c in all_of if c.order == order]
        written = np.array([e for c in some for e in c.written])
        yield f"| {name} | as written | {len(written)} | {' | '.join(map(ulp, percentiles(written)))} | | | | | |"
        for backend in some[0].ours if some else ():
            ours = np.array([e for c in some for e in c.ours[backend]])
            far = sum(worse(c, backend).any() for c in some)
            pairs = ((ours, written), (written, ours))
            shares = [f"{100 * np.mean(a > b + FAR):.2f} %" for a, b in pairs]
            shares += [f"{100 * np.mean(np.isinf(a) & np.isfinite(b)):.2f} %" for a, b in pairs]
            cells = [*map(ulp, percentiles(ours)), *shares, f"{far} of {len(some)}"]
            yield f"| {name} | {backend} | {len(ours)} | {' | '.join(cells)} |"


def worse(c: Compared, backend: str) -> Any:
    """Return the points at which an op is more than 4 ulp worse than its formula."""
    return np.array(c.ours[backend]) > np.array(c.written) + FAR


def percentiles(ulp: Any) -> list[float]:
    return [float(np.percentile(ulp, p, method="higher")) for p in PERCENTILES]


def ulp(value: float) -> str:
    return "NaN or ∞" if math.isinf(value) else f"{value:.2g}" if value < 1e3 else f"{value:.0e}".replace("e+0", "e")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", default="", help="measure only formulas whose name contains this text")
    parser.add_argument("--backend", choices=BACKENDS, help="measure only this backend")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="update the table between the markers of a page")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"seed {seed}\n")
    torch.set_num_threads(1)
    cases = [case for case in (*FORMULAS, *SEVERAL, *MORE) if options.only in case.name]
    backends = (options.backend,) if options.backend else BACKENDS
    found = []
    for case in cases:
        for c in compared(case, functions(cases)[case.name], backends, options.points, seed):
            found.append(c)
            for backend in backends:
                if (far := worse(c, backend)).any():
                    most = ", ".join(ulp(max(errors)) for errors in (c.ours[backend], c.written))
                    share = 100 * far.mean()
                    print(f"{c.formula}, {c.target}, {backend}: worse at {share:.2f} % (max {most})", flush=True)
    table = "\n".join(lines(found))
    print(f"\n{len(cases)} formulas\n{table}")
    if options.json:
        options.json.write_text(json.dumps([asdict(c) for c in found]))
    if options.write:
        replace_table(options.write, *MARKERS, table)


if __name__ == "__main__":
    main()
