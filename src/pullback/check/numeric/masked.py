"""Gradients spoiled by a branch that `where` does not select: 0 times its infinite or undefined derivative."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from pullback.check.numeric.elementwise import Columns
from pullback.check.numeric.onset import PASSED
from pullback.check.numeric.sweep import Quantity, Sweeper
from pullback.errors import DerivativeError
from pullback.stable.derive import derivative
from pullback.stable.evaluate import evaluate_all
from pullback.stable.formats import Mask
from pullback.stable.term import Term, topological, variables


def traps(value: Term, by: str, at: Columns, dtype: torch.dtype) -> list[tuple[Term, Mask]]:
    """Return each branch of a formula that is not finite, or whose derivative is not, and where that is unselected."""
    inputs = {name: torch.from_numpy(x).to(dtype) for name, x in at.items()}
    found = []
    for condition, branch, chosen_if in _branches(value):
        try:
            slope = derivative(branch, by)
        except DerivativeError:
            continue
        taken, here, there = evaluate_all([condition, branch, slope], inputs)
        unselected = taken.bool() != chosen_if
        spoilt = unselected & ~(_finite(here) & _finite(there))
        if bool(spoilt.any()):
            found.append((branch, spoilt.numpy()))
    return found


def masked(sweeper: Sweeper, at: Columns, quantity: Quantity, k: int, dtype: torch.dtype, bad: Mask) -> Mask:
    """Return those bad points of a gradient at which higher precision would not help.

    An unselected branch of the forward is not finite there, or the gradient is NaN in float64 too, at points without
    overflow: a mask in the backward is multiplied by a non-finite value.
    """
    found = np.zeros_like(bad)
    if not quantity.by or not bad.any():
        return found
    if quantity.formula is not None:
        for _, where in traps(quantity.formula, quantity.by, at, dtype):
            found |= bad & where
    plain = np.all([(np.abs(x) >= PASSED[0]) & (np.abs(x) <= PASSED[1]) for x in at.values()], axis=0)
    left = np.flatnonzero(bad & plain & ~found)
    if len(left):
        wide = sweeper.function.run(torch.float64, {name: x[left] for name, x in at.items()})
        found[left] = wide[k].isnan().numpy()
    return found


def _branches(value: Term) -> Iterator[tuple[Term, Term, bool]]:
    """Yield each branch that depends on an input: its condition, the branch, and the selecting node."""
    for term in topological([value]):
        if term.op == "where":
            condition, chosen, other = term.args
            for branch, chosen_if in ((chosen, True), (other, False)):
                if variables(branch):
                    yield condition, branch, chosen_if


def _finite(t: Tensor) -> Tensor:
    return torch.isfinite(t)
