"""Runs terms with PyTorch's kernels, op by op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pullback.ops.constants import VALUES
from pullback.ops.registry import OPS
from pullback.stable.term import CONST, NAMED, POLY, VAR, Term, topological


def evaluate(root: Term, inputs: Mapping[str, Tensor], known: dict[Term, Tensor] | None = None) -> Tensor:
    """Return the value of a term on tensors of one dtype, by the names of its variables.

    A constant is rounded to that dtype. A term without variables is as large as the first tensor. `known` holds the
    subterms that are computed already, and takes the others.
    """
    return evaluate_all([root], inputs, known)[0]


def evaluate_all(
    roots: Sequence[Term], inputs: Mapping[str, Tensor], known: dict[Term, Tensor] | None = None
) -> list[Tensor]:
    """Return the values of several terms, each subterm computed once."""
    like = next(iter(inputs.values()))
    values = {} if known is None else known
    for term in topological(roots):
        if term in values:
            continue
        if term.op == VAR:
            values[term] = inputs[term.value]
        elif term.op in (CONST, NAMED):
            exact = torch.full((), number(term), dtype=torch.float64, device=like.device)
            values[term] = exact.to(like.dtype)  # perhaps ±inf
        elif term.op == POLY:
            values[term] = term.value.run(values[term.args[0]])
        else:
            values[term] = OPS[term.op].value(*(values[a] for a in term.args))
    # A result without variables has no size yet; times 1 it keeps its bits.
    return [values[root] if values[root].ndim else torch.ones_like(like) * values[root] for root in roots]


def number(constant: Term) -> float:
    """Return the value of a constant, rounded to float64."""
    return VALUES[constant.value] if constant.op == NAMED else float(constant.value)
