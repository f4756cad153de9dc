"""Numeric extraction: of every class of an e-graph the few implementations that are best measured, by region.

Bottom up, each class keeps the implementations (terms with the values that PyTorch computes for them at the samples)
whose error against the exact value of the class is least, worst case by region of the samples. Nothing is estimated:
an operation is run on the values that its operands were computed to have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pullback.numerics.classes import ClassTruths
from pullback.numerics.egraph import EGraph
from pullback.numerics.ops import CONDITIONS, OPS
from pullback.numerics.samples import REGION
from pullback.numerics.term import LEAVES, VAR, Term, const

_WORST = 1e9  # ulp: an error beyond any meaning
_MAX_COST = 120.0
_ROUNDS = 10
_LEVELS = (1.0, 2.0, 4.0)  # ulp that a root's cheaper implementations may have


@dataclass(slots=True)
class Kept:
    """The implementations of a class.

    Attributes:
        terms: each as a term.
        values: what they compute at the samples, one row each.
        errors: log2(1 + ulp beyond one half), the worst of each region, one row each.
        costs: of each, in additions.
    """

    terms: list[Term]
    values: Tensor
    errors: np.ndarray
    costs: np.ndarray


class Measure:
    """The error in ulp of computed values against exact ones, all at the samples."""

    def __init__(self, exact: np.ndarray, dtype: torch.dtype) -> None:
        info = torch.finfo(dtype)
        high = torch.from_numpy(exact)
        smallest = torch.tensor(info.tiny, dtype=torch.float64)
        exponent = torch.frexp(torch.maximum(high.abs(), smallest).nan_to_num(nan=1.0, posinf=info.max))[1]
        self._per_ulp = torch.ldexp(torch.ones_like(high), 1 - exponent) / info.eps
        self._over = high.abs() > info.max
        self._unknown = torch.isnan(high)
        self._high = high
        self._max = info.max

    def ulp(self, values: Tensor) -> Tensor:
        """Return errors, `_WORST` for a NaN or an infinity that should not be, 0 where the exact value is unknown."""
        y = values.double()
        error = ((y - self._high) * self._per_ulp).abs_().nan_to_num_(nan=_WORST, posinf=_WORST).clamp_max_(_WORST)
        if self._over.any():
            right = (y.abs() >= self._max) & (torch.signbit(y) == torch.signbit(self._high))
            error = torch.where(self._over, torch.where(right, 0.0, _WORST), error)
        return error.masked_fill_(self._unknown, 0.0)


class Extraction:
    """Implementations of the classes of an e-graph.

    Args:
        graph: saturated.
        points: of each variable its samples, in an order in which neighbours are alike; their number is a multiple of
            `REGION`.
        dtype: that the implementations compute in.
        width: how many implementations a class keeps.
    """

    def __init__(
        self, graph: EGraph, roots: Sequence[int], points: Mapping[str, np.ndarray], dtype: torch.dtype, width: int = 5
    ) -> None:
        self._graph = graph
        self._roots = {graph.find(r) for r in roots}
        self._dtype = dtype
        self._width = width
        self._inputs = {name: torch.from_numpy(x).to(dtype)[None] for name, x in points.items()}
        self._n = len(next(iter(points.values())))
        self._truths = ClassTruths(graph, points)
        self._measures: dict[int, Measure] = {}
        self.kept: dict[int, Kept] = {}
        self._run()

    def of(self, root: int) -> Kept | None:
        """Return what a class kept; `None` where nothing computes it."""
        return self.kept.get(self._graph.find(root))

    def _run(self) -> None:
        changed = self._leaves()
        for _ in range(_ROUNDS):
            fresh: set[int] = set()
            for owner, nodes in self._graph.nodes.items():
                if owner in self._fixed or owner not in self._truths.exact:
                    continue
                if self._improve(owner, nodes, changed | fresh):
                    fresh.add(owner)
            changed = fresh
            if not changed:
                return

    def _leaves(self) -> set[int]:
        graph = self._graph
        self._fixed = set()
        for owner, nodes in graph.nodes.items():
            leaf = next((n for n in nodes if n[0] in LEAVES), None)
            if leaf is not None and leaf[0] == VAR:
                term, values = Term(VAR, (), leaf[1]), self._inputs[leaf[1]]
            elif owner in self._truths.constants:
                exact = self._truths.constants[owner]
                term = Term(leaf[0], (), leaf[1]) if leaf else const(exact)
                values = torch.full((1, self._n), exact, dtype=self._dtype)
            else:
                continue
            self._fixed.add(owner)
            self.kept[owner] = Kept([term], values, np.zeros((1, self._n // REGION)), np.array([0.05]))
        return set(self._fixed)

    def _improve(self, owner: int, nodes: set[tuple[object, ...]], changed: set[int]) -> bool:
        """Try what an op's class can be made of, now that some operands have new implementations."""
        known = self.kept.get(owner)
        terms, costs, values = ([], [], []) if known is None else (known.terms, list(known.costs), [known.values])
        seen = {row.numpy().tobytes(): cost for row, cost in zip(known.values, costs, strict=True)} if known else {}
        batches = [self._candidates(n) for n in nodes if self._is_ready(n, changed)]
        terms, made = list(terms), False
        for batch_terms, batch, batch_costs in filter(None, batches):
            keep = []
            for i, (row, cost) in enumerate(zip(batch.numpy(), batch_costs, strict=True)):
                key = row.tobytes()
                if cost <= _MAX_COST and cost < seen.get(key, np.inf):
                    seen[key] = cost
                    keep.append(i)
            if keep:
                made = True
                terms += [batch_terms(i) for i in keep]
                costs += [batch_costs[i] for i in keep]
                values.append(batch[keep])
        if not made:
            return False
        before = known.terms if known else []
        self.kept[owner] = self._pruned(owner, terms, torch.cat(values), np.array(costs))
        return self.kept[owner].terms != before

    def _is_ready(self, node: tuple[object, ...], changed: set[int]) -> bool:
        if node[0] in LEAVES:
            return False
        children = [self._graph.find(c) for c in node[1:]]  # type: ignore[arg-type]
        return all(c in self.kept for c in children) and any(c in changed for c in children)

    def _candidates(self, node: tuple[object, ...]):  # type: ignore[no-untyped-def]
        """Run an op on every combination of its operands' implementations, in one call."""
        op = str(node[0])
        operands = [self.kept[self._graph.find(c)] for c in node[1:]]  # type: ignore[arg-type]
        counts = [len(k.terms) for k in operands]
        grid = [
            k.values.reshape([-1 if i == j else 1 for j in range(len(counts))] + [self._n])
            for i, k in enumerate(operands)
        ]
        batch = OPS[op].run(*grid).expand(*counts, self._n).reshape(-1, self._n)
        costs = np.full(counts, OPS[op].cost)
        for i, k in enumerate(operands):
            costs = costs + k.costs.reshape([-1 if i == j else 1 for j in range(len(counts))])

        def term(i: int) -> Term:
            places = np.unravel_index(i, counts)
            return Term(op, tuple(k.terms[p] for k, p in zip(operands, places, strict=True)))

        return term, batch, costs.ravel()

    def _pruned(self, owner: int, terms: list[Term], values: Tensor, costs: np.ndarray) -> Kept:
        cheapest: dict[bytes, int] = {}
        for i in np.argsort(costs, kind="stable")[::-1]:
            cheapest[values[i].numpy().tobytes()] = int(i)
        rows = sorted(cheapest.values())
        values, costs, terms = values[rows], costs[rows], [terms[i] for i in rows]
        errors = self._errors(owner, values)
        width = self._width * 3 if owner in self._roots else self._width
        chosen = _cover(errors, costs, width)
        if owner in self._roots:
            chosen += [i for level in _LEVELS for i in _cheap(errors, costs, level)]
        chosen = list(dict.fromkeys(chosen))
        return Kept([terms[i] for i in chosen], values[chosen], errors[chosen], costs[chosen])

    def _errors(self, owner: int, values: Tensor) -> np.ndarray:
        if any(n[0] in CONDITIONS for n in self._graph.nodes[owner]):
            return np.zeros((len(values), self._n // REGION))
        measure = self._measures.get(owner)
        if measure is None:
            measure = self._measures[owner] = Measure(self._truths.exact[owner], self._dtype)
        worst = measure.ulp(values).reshape(len(values), -1, REGION).amax(-1)
        return torch.log2(1 + (worst - 0.5).clamp_min_(0)).numpy()


def _cover(errors: np.ndarray, costs: np.ndarray, most: int) -> list[int]:
    """Choose implementations that together have the least error in every region, the cheaper of equals."""
    best = np.full(errors.shape[1], 40.0)
    alive = np.ones(len(errors), bool)
    chosen: list[int] = []
    while alive.any() and len(chosen) < most:
        score = np.minimum(errors, best).sum(1) + 0.15 * costs
        score[~alive] = np.inf
        i = int(np.argmin(score))
        if chosen and best.sum() - np.minimum(best, errors[i]).sum() < 0.25:
            break
        chosen.append(i)
        alive[i] = False
        best = np.minimum(best, errors[i])
    return chosen


def _cheap(errors: np.ndarray, costs: np.ndarray, level: float) -> list[int]:
    """Choose cheap implementations that together stay within some ulp, as far as any do."""
    floor = np.log2(1 + level)
    best = np.full(errors.shape[1], 40.0)
    chosen: list[int] = []
    for _ in range(6):
        i = int(np.argmin(np.maximum(np.minimum(errors, best), floor).sum(1) + costs))
        if np.maximum(best, floor).sum() <= np.maximum(np.minimum(errors[i], best), floor).sum() + 0.25:
            break
        chosen.append(i)
        best = np.minimum(best, errors[i])
    return chosen
