"""Accuracy of the quick rule pass on common formulas, and its cost at a first call.

    python benchmarks/quick_forms.py [--dtype bfloat16] [--backend native] [--json FILE]

Measures the 25 formulas of one variable and the 20 of several of `accuracy_formulas.py`, without certificates. Value,
first and second derivatives, as written under autograd and as the op computes them, are compared with exact values at
fresh points (`accuracy_points.py`; for one 16-bit variable at every number). *Good* is within 4 ulp wherever the exact
value is a normal number, without a spurious NaN, infinity or 0; *clean* is the latter alone. The cost is the processor
time of the look-up at the first call for a dtype, in milliseconds, the fastest of three: reading the formula, applying
the rules, and testing the results. The module has a file of 32 certificates, like the catalogue's, with none for the
formula; a process reads the file once, and the cost of that is printed, too. Run it on an idle machine.

The formula as written runs in PyTorch's kernels, whose bits the op keeps; the forms run in those of the backend. Forms
that are worse there, by more than 4 ulp, are listed and make the script fail.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import combinations_with_replacement
from pathlib import Path
from statistics import median
from typing import Any

import torch
from accuracy_formulas import FORMULAS, SEVERAL, Case
from accuracy_points import fresh

import pullback
from pullback.kernels.backend import Backend, compiled
from pullback.ops.constants import VALUES
from pullback.stable.certificate import By, label, load
from pullback.stable.derivative import derivative
from pullback.stable.formula import Formula, Quantity
from pullback.stable.lookup import StableForms
from pullback.stable.meaning import meaning_of
from pullback.stable.measure import Errors, errors
from pullback.stable.oracle.values import exact
from pullback.stable.quick import quick_forms
from pullback.stable.sampling import every_number
from pullback.stable.term import parse, variables

POINTS, SEED, ROUNDS, BOUND = 4000, 20262, 3, 50.0
ZERO = 2.0**24
"""Error that a spurious 0 counts as, in ulp of float32; any error from half of it on is one."""
CATALOGUE = Path(pullback.__file__).parent / "catalog" / "activations.stable.toml"


@dataclass
class Score:
    """Errors of one quantity."""

    formula: str
    target: str
    order: int
    before: tuple[float, int, float]
    after: tuple[float, int, float]


def functions(folder: Path) -> dict[Case, Callable[..., Any]]:
    """Return the formulas as functions of a module with a file of certificates for other formulas."""
    path = folder / "formulas.py"
    cases = (*FORMULAS, *SEVERAL)
    lines = [f"def f{i}({', '.join(variables(parse(c.text)))}): return {c.text}" for i, c in enumerate(cases)]
    path.write_text("\n".join(lines), encoding="utf-8")
    others = CATALOGUE.read_text(encoding="utf-8").replace('formula = "', 'formula = "0 + ')
    (folder / "formulas.stable.toml").write_text(others, encoding="utf-8")
    scope: dict[str, Any] = {**vars(torch), **VALUES, "__name__": "formulas", "__file__": str(path)}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), scope)
    return {case.name: scope[f"f{i}"] for i, case in enumerate(cases)}


def milliseconds(function: Callable[..., Any], dtype: torch.dtype) -> float:
    """Return the cost of the look-up, for a new op each time."""
    best = float("inf")
    for _ in range(ROUNDS):
        stable = StableForms(function)
        start = time.process_time()
        stable.forms((torch.ones(3, dtype=dtype),) * function.__code__.co_argcount, {})
        best = min(best, 1e3 * (time.process_time() - start))
    return best


def reading() -> float:
    """Return the cost of reading a file of certificates."""
    start = time.process_time()
    load(CATALOGUE, ("none of these", (), "", ""))
    return 1e3 * (time.process_time() - start)


def scores(case: Case, function: Callable[..., Any], dtype: torch.dtype, backend: Backend) -> Iterator[Score]:
    term, names = parse(case.text), variables(parse(case.text))
    if dtype.itemsize == 2 and len(names) == 1:
        low, high = case.domain.get(names[0], (-torch.inf, torch.inf))
        x = every_number(dtype)
        at = {names[0]: x[(x >= low) & (x <= high)]}
    else:
        at = fresh(names, case.domain, POINTS, SEED)
        at = {name: torch.from_numpy(x).to(dtype).double().numpy() for name, x in at.items()}
    tensors = [torch.from_numpy(at[name]).to(dtype) for name in names]
    written = Formula(function).run(tensors, 2)
    found = quick_forms(function, meaning_of(function, dtype), dtype)
    forms = {} if found is None else {(): found.value, **found.derivatives}
    for by in (by for order in range(3) for by in combinations_with_replacement(names, order)):
        truth = exact([differentiated(term, by)], at)[0]
        before = errors(written[Quantity(0, by)], truth)
        form = forms.get(tuple(names.index(name) for name in by))
        if form is not None and backend == "native":
            form = compiled(form, backend)
        after = before if form is None else errors(form(*tensors), truth)
        yield Score(case.name, label(by), len(by), summary(before), summary(after))


def differentiated(term: Any, by: By) -> Any:
    for name in by:
        term = derivative(term, name)
    return term


def summary(found: Errors) -> tuple[float, int, float]:
    """Return the largest error, the number of spurious results, and the largest error including these."""
    normal = found.stated & ~found.subnormal
    largest, spurious = float(found.ulp[normal].max(initial=0.0)), found.spurious & ~found.subnormal
    lost = bool((spurious & ~found.zero).any())
    return largest, int(spurious.sum()), float("inf") if lost else max(largest, ZERO * bool(found.zero.any()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--backend", default="eager", choices=("eager", "native"))
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        made = functions(Path(folder))
        milliseconds(next(iter(made.values())), dtype)  # PyTorch's tracer takes a second when it is first used
        costs = {name: milliseconds(function, dtype) for name, function in made.items()}
        found = [s for c in (*FORMULAS, *SEVERAL) for s in scores(c, made[c.name], dtype, options.backend)]
    for s in found:
        if s.before != s.after:
            print(f"{s.formula:24}{s.target:10}{s.before[0]:10.2g}{s.before[1]:6} → {s.after[0]:10.2g}{s.after[1]:6}")
    print(f"\n{'':16}{'of':>6}{'good: written':>16}{'rules':>8}{'clean: written':>18}{'rules':>8}")
    for order, name in enumerate(("values", "gradients", "second")):
        some = [s for s in found if s.order == order]
        good = [sum(ulp <= 4 and not bad for ulp, bad, _ in side) for side in sides(some)]
        clean = [sum(not bad for _, bad, _ in side) for side in sides(some)]
        print(f"{name:16}{len(some):6}{good[0]:16}{good[1]:8}{clean[0]:18}{clean[1]:8}")
    slowest = max(costs, key=lambda name: costs[name])
    print(f"\nfirst call: median {median(costs.values()):.0f} ms, worst {costs[slowest]:.0f} ms ({slowest})")
    print(f"reading the certificates of the catalogue: {reading():.0f} ms")
    if options.json:
        options.json.write_text(json.dumps({"costs": costs, "scores": [asdict(s) for s in found]}, indent=1))
    worse = [s for s in found if s.after[2] > max(s.before[2], 4.0)]
    for s in worse:
        print(f"worse: {s.formula} {s.target}: {s.before} → {s.after}")
    return int(costs[slowest] > BOUND or bool(worse))


def sides(some: list[Score]) -> tuple[list[tuple[float, int, float]], list[tuple[float, int, float]]]:
    return [s.before for s in some], [s.after for s in some]


if __name__ == "__main__":
    sys.exit(main())
