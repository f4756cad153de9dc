"""Terms on tensors: plain PyTorch, one kernel for each op."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pullback.numerics.ops import OPS, VALUES
from pullback.numerics.term import CONST, LEAVES, NAMED, POLY, VAR, Term, topological


def evaluate(root: Term, inputs: Mapping[str, Tensor], known: dict[Term, Tensor] | None = None) -> Tensor:
    """Compute a term on tensors of one dtype; `known` keeps what is shared between terms."""
    known = {} if known is None else known
    example = next(iter(inputs.values()))
    for term in topological([root]):
        if term not in known:
            known[term] = _run(term, inputs, known, example)
    return known[root]


def number(term: Term) -> float:
    """Return the value of a constant, rounded."""
    return VALUES[term.value] if term.op == NAMED else float(term.value)


def _run(term: Term, inputs: Mapping[str, Tensor], known: Mapping[Term, Tensor], example: Tensor) -> Tensor:
    if term.op == VAR:
        return inputs[term.value]
    if term.op in LEAVES:
        return torch.tensor(number(term), dtype=example.dtype, device=example.device)
    operands = [known[a] for a in term.args]
    made: Tensor = term.value.run(*operands) if term.op == POLY else OPS[term.op].run(*operands)
    return made


def is_constant(term: Term) -> bool:
    """Whether a term is a number."""
    return term.op in (CONST, NAMED)
