"""Reuse of the cotangent's memory for the gradient: a step where it is possible, and the same step where it is not.

    python benchmarks/cotangent_memory.py [--json FILE] [--write docs/performance.md]

The step is (op(x) · w).sum() and its gradient. The cotangent of the op comes from the backward of the product, and only
the engine refers to it, as between the layers of a network. The peers are the same step with a no-op hook on the op's
result, through which Python holds a reference to the cotangent (*held*); with `torch.sigmoid` as the op, which
allocates its gradient; and `torch.compile` of the whole step.
"""

from __future__ import annotations

import argparse

import torch
from formulas import CASES, Case
from side_by_side import medians, parsed, publish, ratio, table, with_caches_of_its_own

SIZES, QUICK_SIZES = (2**16, 2**20, 2**24), (2**12,)
SHOWN = ("log σ(x)", "sin² x", "σ(x)·rsqrt(1+exp x)", "GELU")


def measured(case: Case, n: int, options: argparse.Namespace) -> dict[str, float]:
    """Return the seconds of each step."""
    (x,) = case.inputs(n, options.device)
    w, op = torch.randn_like(x), case.op(stable=False, backend="native")

    def step(function):
        return torch.autograd.grad((function(x) * w).sum(), x)

    def held():
        y = op(x)
        y.register_hook(lambda g: None)
        return torch.autograd.grad((y * w).sum(), x)

    compiled = torch.compile(lambda x: (case.formula(x) * w).sum())
    calls = {"op": lambda: step(op), "held": held, "sigmoid": lambda: step(torch.sigmoid)}
    calls["compile"] = lambda: torch.autograd.grad(compiled(x), x)
    for call in calls.values():
        call()
    for name in ("held", "compile"):
        torch.testing.assert_close(calls["op"](), calls[name](), rtol=1e-4, atol=1e-5)
    return medians(calls, options)


def main() -> None:
    options, records = parsed(__doc__), []
    sizes, peers = QUICK_SIZES if options.quick else SIZES, ("held", "sigmoid", "compile")
    with with_caches_of_its_own():
        for case in (c for c in CASES if c.name in SHOWN):
            records += [{"formula": case.name, "n": n, "seconds": measured(case, n, options)} for n in sizes]
    head = ["written, over", *(f"{peer}, 2^{n.bit_length() - 1}" for n in sizes for peer in peers)]
    rows = []
    for name in SHOWN:
        mine = [r["seconds"] for r in records if r["formula"] == name]
        rows.append([name, *(ratio(r["op"], r[peer]) for r in mine for peer in peers)])
    publish(__file__, options, table(head, rows), records)


if __name__ == "__main__":
    main()
