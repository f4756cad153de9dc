"""Terms evaluated by PyTorch's kernels, op by op, and the inputs whose NaN reaches the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product

import torch
from torch import Tensor

from pullback import _torch
from pullback.ops.constants import VALUES
from pullback.ops.registry import CONDITIONS, OPS
from pullback.stable.term import CONST, LEAVES, NAMED, POLY, VAR, Term, topological


def evaluate(root: Term, inputs: Mapping[str, Tensor], known: dict[Term, Tensor] | None = None) -> Tensor:
    """Value of a term on tensors of one dtype, by the names of its variables.

    A constant is rounded to that dtype. A term without variables is as large as the first tensor. `known` holds the
    subterms that are computed already, and takes the others.
    """
    return evaluate_all([root], inputs, known)[0]


def evaluate_all(
    roots: Sequence[Term], inputs: Mapping[str, Tensor], known: dict[Term, Tensor] | None = None
) -> list[Tensor]:
    """Values of several terms, each subterm computed once."""
    like = next(iter(inputs.values()))
    values = {} if known is None else known
    for term in topological(roots):
        if term in values:
            continue
        if term.op == VAR:
            values[term] = inputs[term.value]
        elif term.op in (CONST, NAMED):
            exact = torch.full((), constant_value(term), dtype=torch.float64, device=like.device)
            values[term] = exact.to(like.dtype)  # perhaps ±inf
        elif term.op == POLY:
            values[term] = term.value.run(values[term.args[0]])
        else:
            values[term] = OPS[term.op].value(*(values[a] for a in term.args))
    # A result without variables has no size yet; times 1 it keeps its bits.
    return [values[root] if values[root].ndim else torch.ones_like(like) * values[root] for root in roots]


def constant_value(constant: Term) -> float:
    """Value of a constant, rounded to float64."""
    return VALUES[constant.value] if constant.op == NAMED else float(constant.value)


_PROBES = (0.0, -1.0, 1.0, 2.5, float("inf"), float("-inf"))


def nan_inputs(root: Term) -> frozenset[str]:
    """Variables whose NaN makes a term NaN, whatever the others are."""
    found: dict[Term, frozenset[str]] = {}
    for term in topological([root]):
        found[term] = _nan_inputs_of(term, found)
    return found[root]


def _nan_inputs_of(term: Term, found: dict[Term, frozenset[str]]) -> frozenset[str]:
    if term.op == VAR:
        return frozenset({term.value})
    if term.op in LEAVES or term.op in CONDITIONS:
        return frozenset()
    if term.op == POLY:
        poly = term.value
        return found[term.args[0]] if poly.power > 0 or len(poly.coefficients) > 1 else frozenset()
    if term.op == "where":
        return found[term.args[1]] & found[term.args[2]]
    constants = tuple(constant_value(a) if a.op in LEAVES and a.op != VAR else None for a in term.args)
    through = [found[a] for i, a in enumerate(term.args) if _passes_nan(term.op, i, constants)]
    return frozenset().union(*through)


@cache
def _passes_nan(op: str, place: int, constants: tuple[float | None, ...]) -> bool:
    """Whether a kernel gives NaN for a NaN operand, whatever the others are: hypot(∞, NaN) is ∞, sgn(NaN) is 0."""
    values = [_PROBES if c is None else (c,) for c in constants]
    values[place] = (float("nan"),)
    columns = zip(*product(*values), strict=True)
    with _torch.without_modes():  # a trace may be the first to ask
        return bool(OPS[op].value(*(torch.tensor(column) for column in columns)).isnan().all())
