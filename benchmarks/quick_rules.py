"""Gain of each rule of the quick pass: errors before and after, against exact values.

    python benchmarks/quick_rules.py [--write docs/numerics.md]

The left side of a rule runs as written, op by op in the dtype; the right side runs as in the pass (16-bit dtypes in
float32), at the same points: a sample over all magnitudes of float32, bfloat16 and float16. A derivative of an op is
compared with autograd's. There is one line per rule, in PyTorch's kernels and in Pullback's, which compute 16-bit
dtypes in float32 from end to end on both sides of a rule. A test compares the tables in the docs with a new
measurement. Takes about five minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pullback.kernels.backend import Backend, compiled
from pullback.ops.registry import LOSSY_IN_AUTOGRAD
from pullback.stable.derivative import derivative
from pullback.stable.evaluate import evaluate
from pullback.stable.measure import errors
from pullback.stable.oracle.values import Truth, exact
from pullback.stable.piecewise import Piecewise
from pullback.stable.rewriting import rewrite
from pullback.stable.rules import differentiable_rules, final_rules, float64_only
from pullback.stable.sampling import sample_points
from pullback.stable.term import Term, parse, variables

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BACKENDS: tuple[Backend, ...] = ("eager", "native")
SEED, MOST = 4, 4000


def markers(backend: Backend) -> tuple[str, str]:
    """Return the markers of the table of a backend."""
    return (
        f"<!-- benchmarks/quick_rules.py, {backend}: begin -->",
        f"<!-- benchmarks/quick_rules.py, {backend}: end -->",
    )


@dataclass(frozen=True)
class Score:
    """Largest error at the points, and number of spurious NaN, infinities and zeros, of all results."""

    ulp: float
    nan: int
    inf: int
    zero: int
    of: int

    def __str__(self) -> str:
        ulp = f"{self.ulp:.2g}" if self.ulp < 1e3 else f"{self.ulp:.0e}".replace("e+0", "e").replace("e+", "e")
        spurious = (("NaN", self.nan), ("inf", self.inf), ("0", self.zero))
        return " ".join([ulp, *(f"{what} {max(1, round(100 * n / self.of))}%" for what, n in spurious if n)])


@dataclass(frozen=True)
class Subject:
    """A rule, or the derivative of an op: the functions before and after it."""

    name: str
    target: Term
    before: Callable[[dict[str, Tensor]], Tensor]
    after: Piecewise


def subjects() -> Iterator[Subject]:
    for rule in (*differentiable_rules(), *final_rules()):
        run = lambda at, term=rule.left: evaluate(term, at)  # noqa: E731
        yield Subject(
            rule.text, rule.left, run, Piecewise.of(rewrite(rule.right, final_rules(), {}, to_fixpoint=False))
        )
    for rule in float64_only():
        run = lambda at, term=rule.left: evaluate(term, at)  # noqa: E731
        yield Subject(f"in float64: {rule.text}", rule.left, run, Piecewise.of(rule.right, wide=True))
    for op in sorted(LOSSY_IN_AUTOGRAD):
        term = parse(f"{op}(a)")
        slope = derivative(term, "a")
        better = rewrite(
            rewrite(slope, differentiable_rules(), {}, to_fixpoint=True), final_rules(), {}, to_fixpoint=False
        )
        yield Subject(f"the derivative of {op}", slope, lambda at, term=term: autograd(term, at), Piecewise.of(better))


def autograd(term: Term, at: dict[str, Tensor]) -> Tensor:
    (x,) = (value.detach().requires_grad_() for value in at.values())
    return torch.autograd.grad(evaluate(term, dict.fromkeys(at, x)).sum(), x)[0]


def measure(subject: Subject, dtype: torch.dtype, backend: Backend) -> tuple[Score, Score]:
    """Return the errors before and after."""
    names = variables(subject.target)
    at = sample_points(names, dtype, SEED)
    step = -(-len(at[names[0]]) // MOST)
    at = {name: x[::step] for name, x in at.items()}
    truth = exact([subject.target], at)[0]
    tensors = [torch.from_numpy(x).to(dtype) for x in at.values()]
    sides = [lambda *xs, run=run: run(dict(zip(at, xs, strict=True))) for run in (subject.before, subject.after.run)]
    if backend == "native":
        sides = [compiled(side, backend) for side in sides]
    return tuple(score(side(*tensors), truth) for side in sides)


def score(computed: Tensor, truth: Truth) -> Score:
    found = errors(computed, truth)
    normal = found.stated & ~found.subnormal
    counts = (int(np.count_nonzero(mask & ~found.subnormal)) for mask in (found.nan, found.inf, found.zero))
    return Score(float(found.ulp[normal].max(initial=0.0)), *counts, of=max(1, len(found.ulp)))


def lines(backend: Backend) -> Iterator[str]:
    """Yield the table of a backend, one line for each rule."""
    kinds = [str(dtype).removeprefix("torch.") for dtype in DTYPES]
    yield f"| rule | {' | '.join(f'{kind} before | after' for kind in kinds)} |"
    yield "| -- |" + " --: |" * 2 * len(kinds)
    for subject in subjects():
        cells = [str(one) for dtype in DTYPES for one in measure(subject, dtype, backend)]
        name = subject.name if subject.name.startswith("the ") else f"`{subject.name}`"
        yield f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="update the table between the markers of a page")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for backend in BACKENDS:
        print(f"\n{backend}\n")
        table = []
        for line in lines(backend):
            print(line, flush=True)
            table.append(line)
        if options.write:
            replace_table(options.write, *markers(backend), "\n".join(table))


def replace_table(page: Path, begin: str, end: str, table: str) -> None:
    before, rest = page.read_text(encoding="utf-8").split(begin)
    _, after = rest.split(end)
    page.write_text(f"{before}{begin}\n{table}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
