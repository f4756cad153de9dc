"""Accuracy and time of the catalogue's softmax, log_softmax, logsumexp and cross_entropy, compared with PyTorch's.

    python benchmarks/rows.py [--json FILE] [--write docs/numerics.md]

Twelve kinds of rows with 2 to 1000 entries and four cotangents each, in four dtypes. Exact values come from the
textbook formulas in ball arithmetic of 3000 bits. Errors of values are in ulp of the exact value. Errors of gradients
are in ulp of Σ_j |J_ij| |g_j| with the exact Jacobian J, the magnitude of the gradient if no terms cancelled. For a
cotangent with one entry that is the exact gradient itself. Below the normal numbers the unit is the smallest subnormal
number.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from flint import arb, ctx
from torch import Tensor

from pullback import catalog

BITS = 3000
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SIZES = (2, 3, 8, 60)
ROUNDS, LONG = 6, 1000
Exact = list[arb]
Function = Callable[[Tensor], Tensor]
WHO = ("ours", "torch")
MARK = "<!-- benchmarks/rows.py: {} -->"


def pairs(k: Tensor) -> dict[str, tuple[Function, Function]]:
    """Return the functions of the catalogue and PyTorch's, for the target class k."""
    return {
        "softmax": (catalog.softmax, lambda x: torch.softmax(x, -1)),
        "log_softmax": (catalog.log_softmax, lambda x: torch.log_softmax(x, -1)),
        "logsumexp": (catalog.logsumexp, lambda x: torch.logsumexp(x, -1)),
        "cross_entropy": (lambda x: catalog.cross_entropy(x, k), lambda x: F.cross_entropy(x, k, reduction="none")),
    }


def rows(dtype: torch.dtype) -> Iterator[Tensor]:
    """Yield rows of every kind."""
    random = torch.Generator().manual_seed(5)
    wide = torch.float64
    most = torch.finfo(dtype).max

    def uniform(n: int) -> Tensor:
        return torch.rand(n, generator=random, dtype=wide)

    def normal(n: int) -> Tensor:
        return torch.randn(n, generator=random, dtype=wide)

    def ahead(n: int, margin: float) -> Tensor:
        lead = torch.zeros(n, dtype=wide).index_fill_(0, torch.randint(n, (1,), generator=random), margin)
        return normal(n) + lead

    for n in (*SIZES * ROUNDS, LONG):
        spread = 10 ** (2 * uniform(1))
        made = [0.1 * normal(n), normal(n), 10 * normal(n), spread * normal(n), -100 * uniform(n), 1e4 + normal(n)]
        made += [1 + 1e-3 * normal(n), torch.full((n,), 0.7, dtype=wide), most * (2 * uniform(n) - 1)]
        made += [ahead(n, margin) for margin in (8.0, 60.0 * uniform(1).item(), 90.0)]
        yield from (x.to(dtype) for x in made)


def cotangents(x: Tensor, k: int, random: torch.Generator) -> Iterator[Tensor]:
    """Yield cotangents: one entry at the largest element and at k, a random one, and a nearly constant one."""
    for place in (int(x.argmax()), k):
        yield torch.zeros_like(x).index_fill_(0, torch.tensor(place), 1.0)
    noise = torch.randn(len(x), generator=random, dtype=torch.float64)
    yield from (noise.to(x.dtype), (1 + 1e-3 * noise).to(x.dtype))


class Row:
    """Exact value, gradients and magnitudes of one row."""

    def __init__(self, x: Tensor) -> None:
        entries, largest = [arb(v) for v in x.tolist()], arb(x.max().item())
        powers = [(v - largest).exp() for v in entries]
        total = sum(powers, arb(0))
        self.p = [e / total for e in powers]
        self.rest = [(total - e) / total for e in powers]
        self.sum = largest + total.log()
        self.log = [v - self.sum for v in entries]

    def values(self, k: int) -> dict[str, Exact]:
        return {"softmax": self.p, "log_softmax": self.log, "logsumexp": [self.sum], "cross_entropy": [-self.log[k]]}

    def gradient(self, name: str, g: Exact, k: int) -> tuple[Exact, Exact]:
        """Return the vjp, and the sums of magnitudes that its errors are measured in."""
        if name == "logsumexp":
            return (exact := [g[0] * p for p in self.p]), [abs(e) for e in exact]
        if name == "cross_entropy":
            g = [-g[0] if i == k else arb(0) for i in range(len(self.p))]
        weights = self.p if name == "softmax" else [arb(1)] * len(g)
        mean = sum((c * (p if name == "softmax" else 1) for c, p in zip(g, self.p, strict=True)), arb(0))
        size = sum((abs(c) * w for c, w in zip(g, weights, strict=True)), arb(0))
        exact, sizes = [], []
        for p, rest, c, w in zip(self.p, self.rest, g, weights, strict=True):
            mixed = p * (size - abs(c) * w)  # of the other cotangents
            if name == "softmax":
                exact.append(p * (c - mean))
                sizes.append(p * rest * abs(c) + mixed)
            else:
                exact.append(c - p * mean)
                sizes.append(rest * abs(c) + mixed)
        return exact, sizes


@dataclass
class Tally:
    """Errors of one function in one dtype, value or gradient, of the catalogue and of PyTorch."""

    worst: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WHO, 0.0))
    bad: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WHO, 0))
    """0 where the exact value is a normal number and 0 not the nearest to within half a unit; or not finite."""
    count: int = 0
    worse: int = 0
    """By more than half a unit than PyTorch's."""

    def add(self, got: dict[str, list[float]], exact: Exact, sizes: Exact, dtype: torch.dtype) -> None:
        info = torch.finfo(dtype)
        for i, (value, size) in enumerate(zip(exact, sizes, strict=True)):
            about = max(float(abs(size).mid()), info.tiny)
            if about > info.max:
                continue
            unit = arb(info.eps) * arb(2.0) ** math.floor(math.log2(about))
            errors = {}
            for who, numbers in got.items():
                finite = math.isfinite(numbers[i])
                errors[who] = float((abs(arb(numbers[i]) - value) / unit).mid()) if finite else math.inf
                lost = numbers[i] == 0 and errors[who] > 0.5 and float(abs(value).mid()) >= info.tiny
                self.bad[who] += lost or not finite
                self.worst[who] = max(self.worst[who], errors[who])
            self.count += 1
            self.worse += errors[WHO[0]] > errors[WHO[1]] + 0.5


def measured(dtype: torch.dtype) -> dict[tuple[str, str], Tally]:
    """Measure values and gradients in a dtype."""
    found: dict[tuple[str, str], Tally] = defaultdict(Tally)
    random = torch.Generator().manual_seed(11)
    for x in rows(dtype):
        k = int(torch.randint(len(x), (), generator=random))
        exact, given = Row(x), list(cotangents(x, k, random))
        values = exact.values(k)
        for name, functions in pairs(torch.tensor(k)).items():
            leaves = [x.clone().requires_grad_() for _ in functions]
            outs = [f(leaf) for f, leaf in zip(functions, leaves, strict=True)]
            found[name, "value"].add(_numbers(outs), values[name], values[name], dtype)
            for g in given if outs[0].dim() else [torch.tensor(0.7, dtype=dtype)]:
                pair = zip(outs, leaves, strict=True)
                grads = [torch.autograd.grad(out, leaf, g, retain_graph=True)[0] for out, leaf in pair]
                slopes, sizes = exact.gradient(name, [arb(c) for c in g.double().reshape(-1).tolist()], k)
                found[name, "gradient"].add(_numbers(grads), slopes, sizes, dtype)
    return found


def _numbers(results: list[Tensor]) -> dict[str, list[float]]:
    return {who: r.detach().double().reshape(-1).tolist() for who, r in zip(WHO, results, strict=True)}


def price(dtype: torch.dtype, shape: tuple[int, int]) -> dict[str, tuple[float, float]]:
    """Return the time relative to PyTorch's function: of the value, and of the value with the gradient."""
    x = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(0)).requires_grad_()
    k = torch.zeros(shape[0], dtype=torch.long)
    found = {}
    for name, functions in pairs(k).items():
        alone = [_fastest(lambda f=f: f(x.detach())) for f in functions]
        g = torch.ones_like(functions[0](x))
        both = [_fastest(lambda f=f, g=g: torch.autograd.grad(f(x), x, g)) for f in functions]
        found[name] = (alone[0] / alone[1], both[0] / both[1])
    return found


def _fastest(call: Callable[[], object]) -> float:
    taken = []
    for _ in range(30):
        start = time.thread_time()
        call()
        taken.append(time.thread_time() - start)
    return min(taken)


def table(found: dict[str, dict[tuple[str, str], Tally]], prices: dict[str, dict[str, tuple[float, float]]]) -> str:
    """Return the tables in Markdown."""
    lines = [f"Measured with PyTorch {torch.__version__.split('+')[0]} on the CPU, one thread.", ""]
    lines += ["| | of | " + " | ".join(found) + " |", "| -- | -- |" + " --: |" * len(found)]
    for name, of in next(iter(found.values())):
        cells = [f"{_shown(f[name, of], 'ours')} / {_shown(f[name, of], 'torch')}" for f in found.values()]
        lines.append(f"| `{name}` | {of} | " + " | ".join(cells) + " |")
    shares = [sum(t.worse for t in f.values()) / sum(t.count for t in f.values()) for f in found.values()]
    lines.append(
        "| half a unit worse than PyTorch's | | " + " | ".join(f"{s:.1%}" if s else "none" for s in shares) + " |"
    )
    lines += ["", "| times as long as PyTorch's | " + " | ".join(prices) + " |", "| -- |" + " --: |" * len(prices)]
    for name in next(iter(prices.values())):
        cells = [f"{p[name][0]:.0f} / {p[name][1]:.0f}" for p in prices.values()]
        lines.append(f"| `{name}`, value / with gradient | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _shown(tally: Tally, who: str) -> str:
    worst = tally.worst[who]
    error = f"{worst:.2f}" if worst < 10 else f"{worst:.0f}" if worst < 1000 else f"1e{math.floor(math.log10(worst))}"
    return f"{error} 0 {tally.bad[who]}×" if tally.bad[who] else error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path, help="write the tables between the markers of this page")
    options = parser.parse_args()
    ctx.prec = BITS
    torch.set_num_threads(1)
    found = {str(dtype).removeprefix("torch."): measured(dtype) for dtype in DTYPES}
    prices = {
        f"{str(dtype).removeprefix('torch.')}, {' × '.join(map(str, shape))}": price(dtype, shape)
        for dtype in (torch.float32, torch.bfloat16, torch.float64)
        for shape in ((8, 8), (1024, 1000))
    }
    shown = table(found, prices)
    print(shown)
    if options.json:
        errors = {d: {f"{n}, {of}": asdict(t) for (n, of), t in f.items()} for d, f in found.items()}
        options.json.write_text(json.dumps({"errors": errors, "price": prices}, indent=1))
    if options.write:
        before, rest = options.write.read_text(encoding="utf-8").split(MARK.format("begin"))
        after = rest.split(MARK.format("end"))[1]
        page = f"{before}{MARK.format('begin')}\n{shown}\n{MARK.format('end')}{after}"
        options.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
