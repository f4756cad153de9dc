"""From a failing case to the smallest one that still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.cases.sizes import resized


def shrink(case: Case, fails: Callable[[Case], bool], alive: Callable[[], bool]) -> Case:
    """Return a case, no larger than `case`, for which `fails` holds.

    Greedy: any simplification that still fails is kept, until none does or `alive` returns false. Sizes are reduced
    first, then values to short decimals. Two positions that share a tensor stay unchanged.
    """
    if len({id(v) for v in case.tensors}) < len(case.wrt):
        return case
    progress = True
    while progress and alive():
        progress = False
        for candidate in _simpler(case):
            if not alive():
                break
            if candidate.doubtful and not case.doubtful:
                continue  # the shrunk input must be as valid as the original
            if fails(candidate):
                case, progress = candidate, True
                break
    return case


def _simpler(case: Case) -> Iterator[Case]:
    present = sorted(case.sizes - {1}, reverse=True)
    for size in present:
        for new in sorted({1, 2, size // 2, size - 1}):
            if new < size:
                yield replace(resized(case, {size: new}), label=case.label)
    for digits in (0, 1, 2):
        rounded = case.map_inputs(lambda t, d=digits: _rounded(t, d), case.label)  # type: ignore[misc]
        if any(not torch.equal(a, b) for a, b in zip(rounded.tensors, case.tensors, strict=True)):
            yield rounded


def _rounded(t: Tensor, digits: int) -> Tensor:
    if t.is_complex():
        return torch.complex(t.real.round(decimals=digits), t.imag.round(decimals=digits))
    return t.round(decimals=digits)
