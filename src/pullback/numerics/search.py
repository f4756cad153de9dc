"""The search for a stable program of a formula or of one of its derivatives."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np
import torch

from pullback.numerics import regimes
from pullback.numerics.derive import derivative
from pullback.numerics.egraph import EGraph
from pullback.numerics.evaluate import evaluate
from pullback.numerics.extract import REGION, Extraction, Measure
from pullback.numerics.oracle import exact, root_between
from pullback.numerics.piecewise import Piece, Program, cost
from pullback.numerics.polynomials import fits
from pullback.numerics.rules import rules
from pullback.numerics.term import CONST, Term, var, variables

Wide = Literal["never", "where-needed", "always"]
Domain = Mapping[str, tuple[float, float]]
_GOAL = {"never": 1.8, "where-needed": 0.7, "always": 0.55}
"""Errors in ulp that are good enough, so that the shorter code is taken."""
_BAD = {"never": 3.5, "where-needed": 1.0, "always": 1.0}
"""Errors in ulp that send the search back for more."""
_WIDE_COST = 12.0
_ROUNDS = 3
_ATTEMPTS = 2
_NODES = 3000


@dataclass(slots=True)
class Found:
    """What a search found for one target.

    Attributes:
        target: the exact meaning, a term.
        program: what computes it.
        variants: stable terms of it, to differentiate.
        worst: the largest error at the points of the search, in ulp.
        seconds: that the search took.
    """

    target: Term
    program: Program
    variants: list[Term]
    worst: float
    seconds: float
    nodes: int = 0
    evaluations: int = 0


@dataclass(slots=True)
class Samples:
    """Points, sorted by the first variable, with the exact value of the target."""

    points: dict[str, np.ndarray]
    exact: np.ndarray


@dataclass(slots=True)
class Search:
    """Stable programs of a formula and of its derivatives.

    Args:
        formula: of one variable or a few.
        domain: bounds of the variables; without, all finite numbers where the formula has a value.
        wide: whether a program may compute in float64.
        seed: of the points.
    """

    formula: Term
    domain: Domain = field(default_factory=dict)
    wide: Wide = "where-needed"
    seed: int = 0
    dtype: torch.dtype = torch.float32
    _found: dict[tuple[str, ...], Found] = field(default_factory=dict)

    def find(self, *by: str) -> Found:
        """Return the program of the formula, or of its derivative by some variables in turn."""
        if by not in self._found:
            self._found[by] = self._search(by)
        return self._found[by]

    def _search(self, by: tuple[str, ...]) -> Found:
        start = time.perf_counter()
        if by:
            below = self.find(*by[:-1])
            target = derivative(below.target, by[-1])
            seeds = [derivative(v, by[-1]) for v in below.variants]
            beside = below.variants
        else:
            target, seeds, beside = self.formula, [], []
        names = variables(self.formula)
        samples = self._samples(target, names)
        graph = self._graph(names)
        root = graph.add_term(target)
        for seed in dict.fromkeys(seeds):
            graph.union(graph.add_term(seed), root)
        for term in beside:
            graph.add_term(term)
        graph.rebuild()
        graph.saturate(rules(), 6, _NODES)
        inner = _thinned(samples)
        choices: list[tuple[Term, bool]] = []
        if len(names) == 1:
            choices += self._polynomials(target, names[0], samples)
        evaluations = 0
        for attempt in range(_ATTEMPTS):
            if attempt:
                graph.saturate(rules(), 2, 2 * _NODES)
            extraction = Extraction(graph, [root], inner.points, self.dtype)
            evaluations += extraction.evaluations
            kept = extraction.of(root)
            terms = [*(kept.terms if kept else []), target]
            choices = list(dict.fromkeys([*choices, *((t, w) for t in terms for w in self._widths())]))
            program, worst, bad = self._program(target, names, choices, samples)
            if not len(bad.exact):
                break
            inner = _followed(inner, bad)  # places where every implementation failed: look for others there
            samples = _joined(samples, bad)
            if len(names) == 1:
                choices += self._patches(target, names[0], bad)
        variants = _variants(kept.terms if kept else [target])
        seconds = time.perf_counter() - start
        return Found(target, program, variants, worst, seconds, graph.size, evaluations)

    def _widths(self) -> list[bool]:
        return {"never": [False], "where-needed": [False, True], "always": [True]}[self.wide]

    def _graph(self, names: Sequence[str]) -> EGraph:
        return EGraph({name: _witnesses(*self._bounds(name), i) for i, name in enumerate(names)})

    def _bounds(self, name: str) -> tuple[float, float]:
        return self.domain.get(name, (-np.inf, np.inf))

    def _samples(self, target: Term, names: Sequence[str], count: int = 6000, fresh: int = 0) -> Samples:
        rng = np.random.default_rng((self.seed, fresh, len(names)))
        points = {n: _points(rng, count, *self._bounds(n), regular=not fresh) for n in names}
        if len(names) > 1:
            points = _mixed(rng, points, count)
        return self._with_truth(target, points)

    def _with_truth(self, target: Term, points: dict[str, np.ndarray]) -> Samples:
        value = exact([target], points)[0].high
        defined = ~np.isnan(value)
        order = np.argsort(next(iter(points.values()))[defined], kind="stable")
        return Samples({n: x[defined][order] for n, x in points.items()}, value[defined][order])

    def _polynomials(self, target: Term, name: str, samples: Samples) -> Iterator[tuple[Term, bool]]:
        x = samples.points[name]
        low, high = x.min(), x.max()
        centres = [(0.0, 0.0)] if low < 0 < high or low == 0 else []
        for root in _roots(target, name, samples)[:6]:
            centres.append(root)
        for centre in centres:
            reach = abs(centre[0]) or 4.0
            radii = [reach * r for r in (0.004, 0.015, 0.04, 0.1, 0.25, 0.5, 0.8)]
            for wide in self._widths():
                for fit in fits(target, name, centre, radii, torch.float64 if wide else self.dtype):
                    yield fit.term, wide

    def _patches(self, target: Term, name: str, bad: Samples) -> Iterator[tuple[Term, bool]]:
        """Yield polynomials for the stretches where every other implementation fails."""
        x = bad.points[name]
        x = x[(abs(x) > 1e-3) & (abs(x) < 1e3)]
        for stretch in np.split(x, 1 + np.flatnonzero(np.diff(x) > 0.1 * (0.2 + abs(x[:-1]))))[:4]:
            if not len(stretch):
                continue
            count = min(4, int(np.ceil((stretch[-1] - stretch[0]) / (0.5 + 0.2 * abs(stretch[0]))))) or 1
            edges = np.linspace(stretch[0], stretch[-1], count + 1)
            for low, high in pairwise(edges):
                radius = max((high - low) / 2, 0.02 * abs(low)) * 1.1
                for wide in self._widths():
                    centre = float(np.float32(f"{(low + high) / 2:.3g}"))
                    for fit in fits(target, name, (centre, 0.0), [radius], torch.float64 if wide else self.dtype):
                        yield fit.term, wide

    def _errors(self, choices: Sequence[tuple[Term, bool]], samples: Samples) -> np.ndarray:
        measure = Measure(samples.exact, self.dtype)
        narrow = {n: torch.from_numpy(x).to(self.dtype) for n, x in samples.points.items()}
        double = {n: x.double() for n, x in narrow.items()}
        known: tuple[dict[Term, torch.Tensor], dict[Term, torch.Tensor]] = ({}, {})
        rows = []
        for term, wide in choices:
            value = evaluate(term, double if wide else narrow, known[wide]).to(self.dtype)
            rows.append(measure.ulp(value.expand(len(samples.exact))).numpy())
        return np.array(rows)

    def _program(
        self, target: Term, names: Sequence[str], choices: Sequence[tuple[Term, bool]], samples: Samples
    ) -> tuple[Program, float, Samples]:
        """Choose among implementations by place; fresh points where the result is wrong join the samples and it is done
        again. Returns the program, its worst error at fresh points and the points where it stayed beyond the goal.
        """
        costs = np.array([cost(t) + _WIDE_COST * w for t, w in choices])
        limit = _BAD[self.wide]
        for round_ in range(_ROUNDS):
            errors = self._errors(choices, samples)
            program = self._split(target, names, choices, costs, errors, samples)
            fresh = self._samples(target, names, 24000, fresh=1 + round_)
            if len(names) == 1:
                fresh = self._with_truth(target, _near_thresholds(program, names[0], fresh.points, self.domain))
            measured = Measure(fresh.exact, self.dtype).ulp(program.run(self._tensors(fresh.points))).numpy()
            worst = np.argsort(-measured)[:64]
            worst = np.sort(worst[measured[worst] > limit])
            bad = Samples({n: x[worst] for n, x in fresh.points.items()}, fresh.exact[worst])
            if not len(worst) or round_ == _ROUNDS - 1:
                return program, float(measured.max(initial=0)), bad
            samples = _joined(samples, bad)
        raise AssertionError("the last round returns")

    def _tensors(self, points: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        return {n: torch.from_numpy(x).to(self.dtype) for n, x in points.items()}

    def _split(
        self,
        target: Term,
        names: Sequence[str],
        choices: Sequence[tuple[Term, bool]],
        costs: np.ndarray,
        errors: np.ndarray,
        samples: Samples,
    ) -> Program:
        if len(names) == 1:
            runs, _ = regimes.few(regimes.price(regimes.around(errors), costs, _GOAL[self.wide]))
            return self._univariate(target, names[0], choices, runs, samples)
        prices = regimes.price(errors, costs, _GOAL[self.wide])
        return _multivariate(names, choices, prices, samples, np.arange(len(samples.exact)), depth=2)[0]

    def _univariate(
        self,
        target: Term,
        name: str,
        choices: Sequence[tuple[Term, bool]],
        runs: Sequence[regimes.Run],
        samples: Samples,
    ) -> Program:
        x = samples.points[name]
        pieces = []
        for run, after in pairwise([*runs, None]):
            upper = np.inf
            if after is not None:
                pair = [choices[run.choice], choices[after.choice]]  # type: ignore[union-attr]

                def worst(
                    points: np.ndarray, pair: Sequence[tuple[Term, bool]] = pair
                ) -> tuple[np.ndarray, np.ndarray]:
                    value = exact([target], {name: points})[0].high
                    left, right = self._errors(pair, Samples({name: points}, value))
                    return left, right

                upper = regimes.threshold(float(x[after.start - 1]), float(x[after.start]), worst, np.float32)
            term, wide = choices[run.choice]  # type: ignore[union-attr]
            pieces.append(Piece(term, upper, wide))
        return Program(var(name), tuple(pieces))


def _multivariate(
    names: Sequence[str],
    choices: Sequence[tuple[Term, bool]],
    prices: np.ndarray,
    samples: Samples,
    rows: np.ndarray,
    depth: int,
) -> tuple[Program, float]:
    """Split by the quantity that pays most, then the parts by others."""
    inputs = {n: torch.from_numpy(x[rows]).float() for n, x in samples.points.items()}
    single = int(np.argmin(prices[:, rows].sum(1)))
    best: tuple[Program, float] = (
        Program(None, (Piece(choices[single][0], wide=choices[single][1]),)),
        float(prices[single, rows].sum()),
    )
    if depth == 0 or len(rows) < 64:
        return best
    for branch in _branches(names):
        value = evaluate(branch, inputs).double().numpy()
        order = np.argsort(value, kind="stable")
        runs, total = regimes.few(prices[:, rows[order]], 4)
        if total >= best[1] - regimes.CHANGE or len(runs) == 1:
            continue
        pieces, spent = [], 0.0
        for run, after in pairwise([*runs, None]):
            inside = rows[order[run.start : run.stop]]  # type: ignore[union-attr]
            body, paid = _multivariate(names, choices, prices, samples, inside, depth - 1)
            upper = np.inf
            if after is not None:
                left, right = value[order[after.start - 1]], value[order[after.start]]
                upper = regimes._roundest(left, right, np.float32) if left < right else float(left)
                spent += regimes.CHANGE
            spent += paid
            lone = body.pieces[0] if len(body.pieces) == 1 else None
            pieces.append(Piece(lone.body, upper, lone.wide) if lone else Piece(body, upper))
        if spent < best[1]:
            best = Program(branch, tuple(pieces)), spent
    return best


def _branches(names: Sequence[str]) -> list[Term]:
    terms = [var(n) for n in names]
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            terms += [Term(op, (var(a), var(b))) for op in ("sub", "add", "mul", "div")]
    return terms


def _variants(terms: Sequence[Term], most: int = 6) -> list[Term]:
    return [t for t in terms if t.op != CONST][:most]


def _thinned(samples: Samples, count: int = 512) -> Samples:
    """Return about `count` samples, evenly taken, a whole number of regions; neighbours are alike in every variable."""
    n = len(samples.exact)
    axes = list(samples.points.values())
    count = max(REGION, min(count * min(len(axes), 2), n) // REGION * REGION)
    rows = np.sort(np.resize(np.unique(np.linspace(0, n - 1, count).astype(int)), count))
    bins = [(np.argsort(np.argsort(x[rows], kind="stable")) * 6) // count for x in axes[:-1]]
    rows = rows[np.lexsort((axes[-1][rows], *bins[::-1]))]
    return Samples({k: x[rows] for k, x in samples.points.items()}, samples.exact[rows])


def _joined(samples: Samples, more: Samples) -> Samples:
    """Return the samples of both, sorted."""
    points = {n: np.concatenate([x, more.points[n]]) for n, x in samples.points.items()}
    order = np.argsort(next(iter(points.values())), kind="stable")
    value = np.concatenate([samples.exact, more.exact])
    return Samples({n: x[order] for n, x in points.items()}, value[order])


def _followed(samples: Samples, more: Samples) -> Samples:
    """Return regions of samples, followed by further ones."""
    rows = np.sort(np.resize(np.arange(len(more.exact)), -(-len(more.exact) // REGION) * REGION))
    points = {n: np.concatenate([x, more.points[n][rows]]) for n, x in samples.points.items()}
    return Samples(points, np.concatenate([samples.exact, more.exact[rows]]))


def _witnesses(low: float, high: float, shift: int) -> list[float]:
    """Return a few generic points of an interval, of few bits, others for each variable."""
    base = np.roll([0.37109375, 1.28125, 2.71875, 0.640625, 1.59375, 0.2109375], shift)
    if np.isfinite(low) and np.isfinite(high):
        at = low + (high - low) * np.array(base) / 3
    elif np.isfinite(low) or np.isfinite(high):
        at = low + base if np.isfinite(low) else high - base
    else:
        at = base * np.roll([1, 1, 1, -1, -1, -1], 2 * shift)
    return [float(v) for v in np.round(at * 2**20) / 2**20]


def _points(rng: np.random.Generator, count: int, low: float, high: float, regular: bool) -> np.ndarray:
    """Return float32 values: powers of two and their neighbourhoods, random bits, and uniform in windows."""
    parts = []
    if regular:
        for e in range(-149, 128):
            for s in (1, -1):
                parts += [s * 2.0**e, s * 2.0**e * (1 + rng.random())] if e > -127 else [s * 2.0**e]
        for c in (0.0, 1.0, -1.0, low, high):
            if np.isfinite(c):
                parts += [c + s * 2.0**-k * (1 + 0.3 * rng.random()) for k in range(1, 24) for s in (1, -1)] + [c]
        for c in (
            88.72,
            -87.34,
            -103.97,
            11.09,
            -17.3,
            16.63,
            -16.63,
            9.01,
            -9.01,
            44.3,
            -44.3,
            89.4,
            -89.4,
            1.8e19,
            -1.8e19,
        ):
            parts += [c * (1 + s * 2.0**-k) for k in (4, 8, 12, 16, 20) for s in (1, -1)]
    rest = max(count - len(parts), count // 2)
    bits = rng.integers(0, 2**32, int(rest * 0.3), dtype=np.uint64).astype(np.uint32).view(np.float32).astype(float)
    parts += [*bits, *rng.uniform(-120, 120, int(rest * 0.3)), *rng.uniform(-12, 12, int(rest * 0.2))]
    around = rng.choice([0.0, 1.0, -1.0], int(rest * 0.2))
    parts += list(around + rng.choice([-1, 1], len(around)) * 2.0 ** rng.uniform(-24, 1, len(around)))
    if np.isfinite(low) and np.isfinite(high):
        parts += list(rng.uniform(low, high, rest))
    elif np.isfinite(low) or np.isfinite(high):
        away = 2.0 ** rng.uniform(-30, 100, rest)
        parts += list(low + away if np.isfinite(low) else high - away)
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.array(parts).astype(np.float32).astype(float)
    x = np.unique(x[np.isfinite(x)])
    return x[(x >= low) & (x <= high)]


def _mixed(rng: np.random.Generator, points: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """Join the values of several variables: at random, and for a part equal, opposite, near or of one magnitude."""
    made = {n: rng.choice(x, count) for n, x in points.items()}
    names = list(made)
    first = made[names[0]]
    for k, n in enumerate(names[1:]):
        x = made[n]
        at = np.arange(count) % 8
        near = first * (1 + rng.choice([-1, 1], count) * 2.0 ** rng.uniform(-24, 0, count))
        moderate = rng.uniform(-20, 20, count)
        x = np.where(at == 1, first, np.where(at == 2, -first, np.where(at == 3, near, np.where(at >= 6, moderate, x))))
        low, high = points[n].min(), points[n].max()
        with np.errstate(over="ignore", invalid="ignore"):
            x = x.astype(np.float32).astype(float)
        made[n] = np.where((x >= low) & (x <= high) & np.isfinite(x), x, made[n])
    for k, n in enumerate(names):
        some = rng.random(count) < 0.4
        low, high = max(points[n].min(), -30), min(points[n].max(), 30)
        made[n] = np.where(some, rng.uniform(low, high, count).astype(np.float32).astype(float), made[n])
    return made


def _roots(target: Term, name: str, samples: Samples) -> list[tuple[float, float]]:
    """Return where a univariate target changes sign, nearest to 0 first, as sums of two floats."""
    x, value = samples.points[name], samples.exact
    sign = np.sign(value)
    steps = np.flatnonzero((sign[:-1] * sign[1:] < 0) & (abs(x[:-1]) < 50) & np.isfinite(value[:-1] + value[1:]))
    found = [r for i in steps[:12] for r in _root(target, name, float(x[i]), float(x[i + 1]))]
    found += [(float(r), 0.0) for r in x[(value == 0) & (x != 0) & (abs(x) < 50)][:6]]
    return sorted((r for r in dict.fromkeys(found) if abs(r[0]) > 1e-6), key=lambda r: abs(r[0]))


def _root(target: Term, name: str, low: float, high: float) -> list[tuple[float, float]]:
    try:
        return [root_between(target, name, low, high)]
    except ValueError:  # the sign changes at a pole, a jump or a hole
        return []


def _near_thresholds(
    program: Program, name: str, points: dict[str, np.ndarray], domain: Domain
) -> dict[str, np.ndarray]:
    x = points[name]
    low, high = domain.get(name, (-np.inf, np.inf))
    for piece in program.pieces:
        if np.isfinite(piece.upper):
            centre = np.float32(piece.upper)
            steps = np.unique(
                np.concatenate(
                    [
                        np.arange(-16, 17),
                        (2.0 ** np.arange(5, 21, 0.5)).astype(int),
                        -(2.0 ** np.arange(5, 21, 0.5)).astype(int),
                    ]
                )
            )
            near = _stepped(centre, steps)
            x = np.concatenate([x, near[(near >= low) & (near <= high)]])
    return {name: np.unique(x)}


def _stepped(centre: np.float32, steps: np.ndarray) -> np.ndarray:
    """Return the floats some steps away."""

    def ordinal(v: np.float32) -> int:
        bits = int(np.float32(v).view(np.int32))
        return bits if bits >= 0 else -(bits & 0x7FFFFFFF)

    places = np.clip(ordinal(centre) + steps, -0x7F7FFFFF, 0x7F7FFFFF)
    bits = np.where(places >= 0, places, (-places) | 0x80000000).astype(np.uint32)
    return bits.view(np.float32).astype(float)
