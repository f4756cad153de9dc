"""The search for stable programs of a formula and of its derivatives.

For each of them it takes an e-graph of the target, together with the derivatives of the stable forms of its
antiderivative; the most accurate implementations of its class by measurement; polynomials where everything cancels; and
a program that chooses among these by thresholds. Fresh points at which it fails join the samples until there are none.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from pullback.ops.record import Continuity
from pullback.ops.registry import OPS
from pullback.stable.derivative import derivative, exact_derivative
from pullback.stable.formats import Floats, working
from pullback.stable.oracle.values import exact
from pullback.stable.piecewise import Piecewise
from pullback.stable.rewriting import tidy
from pullback.stable.rules import search_rules
from pullback.stable.sampling import Domain, TargetSamples, sample_target
from pullback.stable.search.candidates import Implementation, clamped, extremes, fitted_polynomials, patches
from pullback.stable.search.egraph import EGraph
from pullback.stable.search.extraction import Extraction, UlpMeasure
from pullback.stable.search.regimes import Goal, Indices, split_multivariate, split_univariate
from pullback.stable.singularities import critical_points, samples_around
from pullback.stable.term import CONST, Term, parse, substitute, topological, var, variables

Wide = Literal["never", "where-needed", "always"]
"""Whether a program for float32 may compute in float64."""

_WIDTHS = {"never": [False], "where-needed": [False, True], "always": [True]}
_GOALS = {"never": Goal(1.8, 3.5), "where-needed": Goal(0.7, 1.0), "always": Goal(0.55, 1.0)}
_GOAL_16 = Goal(0.503, 0.51, 200.0)
"""For 16-bit formats, which are computed in wider ones."""
_SAMPLES, _INNER = 7000, 512
_EFFORTS = ((4, 1000), (3, 3000), (2, 6000))
"""Iterations of saturation, and the limit of nodes: more if every implementation so far fails somewhere."""
_ROUNDS, _MOST_ROUNDS, _WRONG = 3, 8, 1e4
"""Rounds in which failing points join the samples; more rounds while an error is as large as this, in ulp."""
_VARIANTS = 6
"""Number of stable forms that are differentiated."""
_WORST = 48
"""Worst points that join the samples in a round; as many others, with smaller errors, join too."""
_CLOSER = 16
"""Number of these points around which the next are drawn, for several variables."""


@dataclass(frozen=True, slots=True)
class FoundProgram:
    """Result of a search for one target.

    Attributes:
        target: the exact term.
        program: computes it.
        variants: stable forms of it.
        worst: the largest error at the fresh points of its last round, in ulp.
        seconds: duration of the search.
        nodes: nodes of the e-graph.
    """

    target: Term
    program: Piecewise
    variants: tuple[Term, ...]
    worst: float
    seconds: float
    nodes: int


@dataclass(slots=True)
class FormSearch:
    """Stable programs of a formula and of its derivatives.

    Attributes:
        formula: a formula of one or a few variables.
        domain: bounds of the variables; without, all finite numbers where the formula has a value.
        wide: whether a program may compute in float64.
        dtype: dtype of its inputs and result.
        seed: seed of the samples.
    """

    formula: Term
    domain: Domain = field(default_factory=dict)
    wide: Wide = "where-needed"
    dtype: torch.dtype = torch.float32
    seed: int = 0
    _found: dict[tuple[str, ...], FoundProgram] = field(default_factory=dict)

    def find(self, *by: str) -> FoundProgram:
        """Program of the formula, or of its derivative by some variables in succession."""
        if by not in self._found:
            self._found[by] = self._search(by)
        return self._found[by]

    def _search(self, by: tuple[str, ...]) -> FoundProgram:
        start = time.perf_counter()
        target, graph, root = self._graph(by)
        names = variables(target) or variables(self.formula)  # a derivative may have fewer
        # Terms that compute the antiderivative well are often written so that their derivatives cancel nowhere, too.
        stable = [derivative(v, by[-1]) for v in self.find(*by[:-1]).variants] if by else []
        stable = [t for t in stable if set(variables(t)) <= set(names)]
        known = sample_target(target, names, self.dtype, self.seed, self.domain).thinned(_SAMPLES * min(len(names), 2))
        if not len(known):
            return FoundProgram(target, Piecewise.of(target), (), 0.0, time.perf_counter() - start, graph.size)
        locations = (
            critical_points(target, names[0], known, self.dtype) if len(names) == 1 and self.dtype.itemsize > 2 else []
        )
        if locations:
            known = known.merged_with(samples_around(target, names, locations, self.dtype, self.seed, self.domain))
        graph.union(graph.add_term(decided_branches(target, known.points)), root)
        graph.rebuild()
        inner = known.in_regions(_INNER * min(len(names), 2))
        widths = _WIDTHS[self.wide]
        choices = list(fitted_polynomials(target, names[0], known, widths, self.dtype)) if len(names) == 1 else []
        for attempt, (times, nodes) in enumerate(_EFFORTS):
            graph.saturate(search_rules(), times, nodes)
            kept = Extraction(graph, [root], inner.points, working(self.dtype)).of(root)
            terms = [*map(tidy, kept.terms if kept else ()), *stable, target]
            choices = list(dict.fromkeys([*choices, *(Implementation(t, w) for t in terms for w in widths)]))
            program, worst, bad = self._program(target, names, choices, known, locations)
            if not len(bad) or attempt == len(_EFFORTS) - 1:
                break
            # every implementation fails at these: look for others there, with more forms
            inner, known = inner.concatenated_with(bad.whole_regions()), known.merged_with(bad)
            choices += extremes(bad, self.dtype)
            if len(names) == 1 and attempt > 0:
                choices += patches(target, names[0], bad, widths, self.dtype)
            if worst >= _WRONG:
                choices += [
                    c for t in terms for w in widths if (c := clamped(Implementation(t, w), self.dtype)).term is not t
                ]
        variants = tuple(t for t in terms[:-1] if t.op != CONST)[:_VARIANTS]
        return FoundProgram(target, program, variants, worst, time.perf_counter() - start, graph.size)

    def _graph(self, by: tuple[str, ...]) -> tuple[Term, EGraph, int]:
        """Target and an e-graph with its class: the target and the derivatives of stable forms."""
        names = variables(self.formula)
        graph = EGraph({n: _witnesses(*self.domain.get(n, (-np.inf, np.inf)), i) for i, n in enumerate(names)})
        if not by:
            return self.formula, graph, graph.add_term(self.formula)
        below = self.find(*by[:-1])
        target = exact_derivative(below.target, by[-1])
        root = graph.add_term(target)
        for variant in below.variants:
            graph.add_term(variant)
            graph.union(graph.add_term(derivative(variant, by[-1])), root)
        graph.rebuild()
        return target, graph, root

    def _program(
        self,
        target: Term,
        names: Sequence[str],
        choices: Sequence[Implementation],
        known: TargetSamples,
        locations: Sequence[float],
    ) -> tuple[Piecewise, float, TargetSamples]:
        """Choose among implementations by thresholds; add fresh points where the result is wrong, and repeat.

        Returns:
            The program, its worst error at the last fresh points, and those of them where it exceeds the limit.
        """
        goal = _GOAL_16 if self.dtype.itemsize == 2 else _GOALS[self.wide]
        best, least, bad, near = Piecewise.of(target), np.inf, known, list[dict[str, float]]()
        for round_ in range(_MOST_ROUNDS):
            if len(names) == 1:
                program = split_univariate(target, names[0], choices, known, goal, self.dtype)
                near = [{names[0]: piece.upper} for piece in program.pieces if np.isfinite(piece.upper)]
            else:
                program = split_multivariate(names, choices, known, goal, self.dtype)
            fresh = sample_target(target, names, self.dtype, self.seed + 1 + round_, self.domain, near)
            if locations:
                fresh = fresh.merged_with(
                    samples_around(target, names, locations, self.dtype, self.seed + 1 + round_, self.domain)
                )
            ulp = UlpMeasure(fresh.exact, self.dtype).ulp(program.run(fresh.tensors(self.dtype))).numpy()
            worst = float(ulp.max(initial=0.0))
            if worst <= least:
                best, least = program, worst
            rows = _some_failures(ulp, goal.limit, self.seed + round_)
            bad = fresh.at(np.sort(rows))
            if not len(bad) or (round_ + 1 >= _ROUNDS and least < _WRONG):
                break
            known = known.merged_with(bad)
            near = [{name: float(x[i]) for name, x in fresh.points.items()} for i in rows[:_CLOSER] if len(names) > 1]
        return best, least, bad


def _some_failures(ulp: Floats, limit: float, seed: int) -> Indices:
    """Positions of errors beyond a limit: the worst, and as many others, which may be of another kind."""
    beyond = np.flatnonzero(ulp > limit)
    beyond = beyond[np.argsort(-ulp[beyond], kind="stable")]
    others = np.random.default_rng(seed).permutation(beyond[_WORST:])
    return np.concatenate([beyond[:_WORST], others[:_WORST]])


def _witnesses(low: float, high: float, shift: int) -> list[float]:
    """Few generic points of an interval, of few bits, others for each variable.

    They are as near to 0 as the interval lets them: at 700 exp(x) - 1 and exp(x) are the same to all bits.
    """
    near = max(low, -3.0), min(high, 3.0)
    low, high = near if np.isfinite([low, high]).any() and near[1] - near[0] >= 0.5 else (low, high)
    base = np.roll([0.37109375, 1.28125, 2.71875, 0.640625, 1.59375, 0.2109375], shift)
    if np.isfinite(low) and np.isfinite(high):
        at = low + (high - low) * base / 3
    elif np.isfinite(low) or np.isfinite(high):
        at = low + base if np.isfinite(low) else high - base
    else:
        at = base * np.roll([1, 1, 1, -1, -1, -1], 2 * shift)
    if min(-low, high) > 2.0**-16 and not at.min() < 0 < at.max():  # |x| and x have to differ at some of them
        at[::2] = (low if at.min() > 0 else high) * base[::2] / 3
    return [float(v) for v in np.round(at * 2**20) / 2**20]


def decided_branches(target: Term, points: Mapping[str, Floats]) -> Term:
    """Term that has the values of the target at some points, without the choices that fall one way at all.

    Nothing proves that they do so in between.
    """
    choices = [t for t in topological([target]) if t.op in OPS and (t.op == "where" or OPS[t.op].pieces)]
    asked = {t: t.args[0] if t.op == "where" else _piece(t, 0) for t in choices}
    if not asked:
        return target
    answers = dict(zip(asked, exact(list(asked.values()), points), strict=True))
    made: dict[Term, Term] = {}
    for term in topological([target]):
        made[term] = Term(term.op, tuple(made[a] for a in term.args), term.value)
        if term in answers:
            made[term] = _taken_branch(made[term], answers[term].high)
    return made[target]


def _piece(term: Term, i: int) -> Term:
    """One of the op's `pieces`, of the term's operands."""
    return substitute(parse(OPS[term.op].pieces[i]), dict(zip(map(var, "abc"), term.args, strict=False)))


def _taken_branch(term: Term, decides: np.ndarray) -> Term:
    if term.op == "where":
        return term.args[1] if (decides == 1).all() else term.args[2] if (decides == 0).all() else term
    jumps = OPS[term.op].continuity is Continuity.STEPS and (decides == 0).any()
    larger, smaller = (decides >= 0).all(), (decides <= 0).all()
    return term if jumps or not (larger or smaller) else _piece(term, 1 if larger else 2)
