"""Numeric extraction: of every class of an e-graph the few implementations that are best measured, by region.

Bottom up, each class keeps the implementations (terms with the values that PyTorch computes for them at the samples)
whose error against the exact value of the class is least, worst case by region of the samples. Nothing is estimated: an
operation is run on the values that its operands were computed to have.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pullback.ops.constants import VALUES
from pullback.ops.registry import CONDITIONS, OPS
from pullback.stable.sampling import REGION
from pullback.stable.search.egraph import ClassTruths, EGraph
from pullback.stable.term import LEAVES, VAR, Term, const, named

_WORST_ULP = 1e9  # ulp: an error beyond any meaning
_MAX_COST = 120.0
_ROUNDS = 10
_LEVELS = (1.0, 2.0, 4.0)  # ulp that a root's cheaper implementations may have


@dataclass(slots=True)
class ClassImplementations:
    """Implementations of a class.

    Attributes:
        terms: each as a term.
        values: their results at the samples, one row each.
        errors: log2(1 + ulp beyond one half), the worst of each region, one row each.
        costs: cost of each, in additions.
    """

    terms: list[Term]
    values: Tensor
    errors: np.ndarray
    costs: np.ndarray


class UlpMeasure:
    """The error in ulp of computed values against exact ones, all at the samples."""

    def __init__(self, exact: np.ndarray, dtype: torch.dtype) -> None:
        info = torch.finfo(dtype)
        high = torch.from_numpy(exact)
        smallest = torch.tensor(info.tiny, dtype=torch.float64)
        # |x| = m 2ᵉ with ½ ≤ m < 1, so the last place of x's binade is eps 2^(e − 1); below the normal numbers it is
        # that of the lowest binade. Both factors are powers of two: the scaling below is exact.
        exponent = torch.frexp(torch.maximum(high.abs(), smallest).nan_to_num(nan=1.0, posinf=info.max))[1]
        self._per_ulp = torch.ldexp(torch.ones_like(high), 1 - exponent) / info.eps
        self._over = high.abs() > info.max
        self._unknown = torch.isnan(high)
        self._high = high
        self._max = info.max

    def ulp(self, values: Tensor) -> Tensor:
        """Errors in ulp; `_WORST_ULP` for a spurious NaN or infinity, 0 where the exact value is unknown."""
        y = values.double()
        error = (
            ((y - self._high) * self._per_ulp)
            .abs_()
            .nan_to_num_(nan=_WORST_ULP, posinf=_WORST_ULP)
            .clamp_max_(_WORST_ULP)
        )
        if self._over.any():
            right = (y.abs() >= self._max) & (torch.signbit(y) == torch.signbit(self._high))
            error = torch.where(self._over, torch.where(right, 0.0, _WORST_ULP), error)
        return error.masked_fill_(self._unknown, 0.0)


class Extraction:
    """Implementations of the classes of an e-graph.

    Args:
        graph: saturated.
        roots: the wanted classes; others are searched only if some term of these may contain them.
        points: samples of each variable, sorted so that neighbours are similar; their number is a multiple of `REGION`.
        dtype: dtype of the implementations.
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
        self._useful = affordable_classes(graph, self._roots, _MAX_COST)
        self._truths = ClassTruths(graph, points, self._useful)
        self._measures: dict[int, UlpMeasure] = {}
        self._seen: dict[int, dict[int, float]] = {}
        self.kept: dict[int, ClassImplementations] = {}
        self._run()

    def of(self, root: int) -> ClassImplementations | None:
        """Implementations kept for a class; `None` if nothing computes it."""
        return self.kept.get(self._graph.find(root))

    def _run(self) -> None:
        changed = self._leaves()
        nodes = {o: self._nodes(o) for o in self._useful if o not in self.kept and o in self._truths.exact}
        for _ in range(_ROUNDS):
            stirred, changed = changed, set()
            for owner, made_of in nodes.items():
                if self._improve(owner, made_of, stirred):
                    stirred.add(owner)
                    changed.add(owner)
            if not changed:
                return

    def _leaves(self) -> set[int]:
        for owner in self._useful:
            leaf = next((n for n in self._graph.nodes[owner] if n[0] in LEAVES), None)
            if leaf is not None and leaf[0] == VAR:
                if leaf[1] not in self._inputs:  # a variable that the wanted classes do without
                    continue
                term, values = Term(VAR, (), leaf[1]), self._inputs[leaf[1]]
            elif owner in self._truths.constants:
                exact = self._truths.constants[owner]
                term = Term(leaf[0], (), leaf[1]) if leaf else _constant_term(exact)
                values = torch.full((1, self._n), exact, dtype=torch.float64).to(self._dtype)  # perhaps ±inf
            else:
                continue
            self.kept[owner] = ClassImplementations([term], values, np.zeros((1, self._n // REGION)), np.array([0.05]))
        return set(self.kept)

    def _nodes(self, owner: int) -> list[tuple[str, tuple[int, ...]]]:
        """Nodes of a class: ops and the classes of their operands."""
        nodes = [(n[0], tuple(map(self._graph.find, n[1:]))) for n in self._graph.nodes[owner] if n[0] not in LEAVES]
        return [(op, operands) for op, operands in nodes if owner not in operands]

    def _improve(self, owner: int, nodes: Sequence[tuple[str, tuple[int, ...]]], stirred: set[int]) -> bool:
        """Try new implementations of an op's class, after some operands got new ones."""
        seen = self._seen.setdefault(owner, {})
        most = self._useful[owner]
        values, costs, makers = [], [], []
        for op, operands in nodes:
            if not all(c in self.kept for c in operands) or stirred.isdisjoint(operands):
                continue
            kept = [self.kept[c] for c in operands]
            batch, batch_costs = self._candidates(op, kept)
            fresh = []
            for i, (row, cost) in enumerate(zip(batch.numpy(), batch_costs.tolist(), strict=True)):
                if cost <= most and cost < seen.get(key := hash(row.tobytes()), np.inf):
                    seen[key] = cost
                    fresh.append(i)
            if fresh:
                values.append(batch[fresh])
                costs.append(batch_costs[fresh])
                makers += [(op, kept, i) for i in fresh]
        if not makers:
            return False
        return self._keep(owner, torch.cat(values), np.concatenate(costs), makers)

    def _candidates(self, op: str, kept: Sequence[ClassImplementations]) -> tuple[Tensor, np.ndarray]:
        """Run an op on every combination of its operands' implementations, in one call."""
        shapes = [[-1 if i == j else 1 for j in range(len(kept))] for i in range(len(kept))]
        grid = [k.values.reshape([*shape, self._n]) for k, shape in zip(kept, shapes, strict=True)]
        counts = [len(k.terms) for k in kept]
        batch = OPS[op].value(*grid).expand(*counts, self._n).reshape(-1, self._n)
        costs = np.full(counts, OPS[op].cost)
        for k, shape in zip(kept, shapes, strict=True):
            costs = costs + k.costs.reshape(shape)
        return batch, costs.ravel()

    def _keep(
        self,
        owner: int,
        values: Tensor,
        costs: np.ndarray,
        makers: Sequence[tuple[str, Sequence[ClassImplementations], int]],
    ) -> bool:
        """Keep the best of the old and the new implementations of a class; return whether a new one is among them."""
        errors, known = self._errors(owner, values), self.kept.get(owner)
        before = 0 if known is None else len(known.terms)
        if known is not None:
            values, errors = torch.cat([known.values, values]), np.concatenate([known.errors, errors])
            costs = np.concatenate([known.costs, costs])
        chosen = _cover(errors, costs, self._width * 3 if owner in self._roots else self._width)
        if owner in self._roots:
            chosen += [i for level in _LEVELS for i in _cheap(errors, costs, level)]
            chosen = list(dict.fromkeys(chosen))
        if known is not None and chosen == list(range(before)):
            return False
        terms = [known.terms[i] if known and i < before else _term_of(*makers[i - before]) for i in chosen]
        self.kept[owner] = ClassImplementations(terms, values[chosen], errors[chosen], costs[chosen])
        return any(i >= before for i in chosen)

    def _errors(self, owner: int, values: Tensor) -> np.ndarray:
        if any(n[0] in CONDITIONS for n in self._graph.nodes[owner]):
            return np.zeros((len(values), self._n // REGION))
        measure = self._measures.get(owner)
        if measure is None:
            measure = self._measures[owner] = UlpMeasure(self._truths.exact[owner], self._dtype)
        worst = measure.ulp(values).reshape(len(values), -1, REGION).amax(-1)
        # half an ulp is correct rounding, which no implementation improves on
        return torch.log2(1 + (worst - 0.5).clamp_min_(0)).numpy()


def affordable_classes(graph: EGraph, roots: Collection[int], most: float) -> dict[int, float]:
    """Classes inside affordable terms of the roots, cheapest context first, with the cost left for each.

    Args:
        graph: the e-graph.
        roots: the classes of the terms.
        most: budget of a term, or twice the cost of the cheapest term if that is more.
    """
    nodes = {
        owner: [(OPS[n[0]].cost, tuple(map(graph.find, n[1:]))) for n in made_of if n[0] not in LEAVES]
        for owner, made_of in graph.nodes.items()
    }
    # Cost of the cheapest term of each class, by relaxation as in Bellman and Ford's shortest paths.
    low = {owner: 0.05 for owner, made_of in graph.nodes.items() if any(n[0] in LEAVES for n in made_of)}
    changed = True
    while changed:
        changed = False
        for owner, made_of in nodes.items():
            costs = [
                cost + sum(low[c] for c in operands) for cost, operands in made_of if all(c in low for c in operands)
            ]
            if costs and min(costs) < low.get(owner, np.inf):
                low[owner], changed = min(costs), True
    most = max([most, *(2 * low[owner] for owner in roots if owner in low)])
    # Cost of the cheapest context of each class: of a root's term, less the class itself. Dijkstra's algorithm from the
    # roots, since a context only grows on the way down.
    rest = {owner: 0.0 for owner in roots if owner in low}
    waiting = [(0.0, owner) for owner in rest]
    while waiting:
        outside, owner = heapq.heappop(waiting)
        if outside > rest[owner]:
            continue
        for cost, operands in nodes[owner]:
            if not all(c in low for c in operands):
                continue
            whole = outside + cost + sum(low[c] for c in operands)
            for c in operands:
                if whole <= most and whole - low[c] < rest.get(c, np.inf):
                    rest[c] = whole - low[c]
                    heapq.heappush(waiting, (rest[c], c))
    return {owner: most - rest[owner] for owner in sorted(rest, key=low.__getitem__)}


def _constant_term(value: float) -> Term:
    name = next((n for n, v in VALUES.items() if v == value), None)
    return const(value) if name is None else named(name)


def _term_of(op: str, kept: Sequence[ClassImplementations], place: int) -> Term:
    """Term of one combination of operands."""
    indices = np.unravel_index(place, [len(k.terms) for k in kept])
    return Term(op, tuple(k.terms[p] for k, p in zip(kept, indices, strict=True)))


def _cover(errors: np.ndarray, costs: np.ndarray, most: int) -> list[int]:
    """Choose implementations that together have the least error in every region, the cheaper of equals."""
    best = np.full(errors.shape[1], 40.0)
    alive = np.ones(len(errors), bool)
    chosen: list[int] = []
    while alive.any() and len(chosen) < most:
        # Greedy set cover: the remaining error in bits, summed over the regions, plus a little for the length. An
        # addition more has to save 0.15 bits somewhere.
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
