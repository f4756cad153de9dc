"""Verdicts of `pullback judge` over many seeds: honest candidates, right Functions with Triton kernels, and hacks.

    python benchmarks/judge_seeds.py [--seeds N] [--only TEXT]

Each seed draws other values and sizes. Prints the candidates that a seed judges wrongly: an honest one that is not
"right", or a hack that is; and how many verdicts there were. Returns 1 if there is one. Kernels need Triton and no GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

import pullback
from pullback.judge.verdict import Verdict

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.judge import formulas
from tests.judge.hacks import HACKS
from tests.judge.honest import HONEST

Trial = tuple[str, bool, Callable[[int], Verdict]]
"""The name of a candidate, whether it is honest, and its judgement with a seed."""


def trials() -> Iterator[Trial]:
    """Yield every candidate."""
    for name, (run, formula, dtype) in HONEST.items():
        judge = partial(pullback.judge, run, getattr(formulas, formula), *formulas.example(formula, dtype))
        yield name, True, lambda seed, judge=judge: judge(seed=seed)
    if find_spec("triton") is not None and not torch.accelerator.is_available():
        yield from _kernels()
    for name, hack in HACKS.items():
        inputs = formulas.example(hack.formula, hack.dtype)
        judge = partial(pullback.judge, hack.run, getattr(formulas, hack.formula), *inputs, forbid=hack.forbid)
        yield name, False, lambda seed, judge=judge: judge(seed=seed)


def _kernels() -> Iterator[Trial]:
    from tests.check.triton_functions.mutants import NATURAL, RIGHT, function_of, load_right, right_names

    for name in right_names():
        module = load_right(name)
        folder = RIGHT if (RIGHT / f"{name}.py").exists() else NATURAL
        file = folder / f"{name}.py"
        args = [x.detach() if isinstance(x, torch.Tensor) else x for x in module.example()]
        judge = partial(pullback.judge, f"{file}:{function_of(module).__name__}", f"{file}:reference", *args)
        yield name, True, lambda seed, judge=judge: judge(seed=seed)


def main() -> int:
    """Judge each candidate with each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="number of seeds (10)")
    parser.add_argument("--only", default="", metavar="TEXT", help="those with this in their name")
    options = parser.parse_args()
    wrong = count = 0
    for name, is_honest, judge in trials():
        if options.only not in name:
            continue
        for seed in range(options.seeds):
            verdict = judge(seed)
            count += 1
            if verdict.is_right != is_honest:
                wrong += 1
                print(f"{name}, seed {seed}: {verdict}", flush=True)
    print(f"{count} verdicts, {wrong} of them wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
