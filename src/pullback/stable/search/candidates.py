"""Implementations that a search chooses among: terms in working or in double precision, and fitted polynomials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from pullback.ops.registry import OPS
from pullback.stable.evaluate import evaluate
from pullback.stable.formats import Floats, working
from pullback.stable.oracle.values import root_between
from pullback.stable.sampling import TargetSamples
from pullback.stable.search.extraction import UlpMeasure
from pullback.stable.search.polynomials import fits, tails
from pullback.stable.term import LEAVES, POLY, Term, const, parse, topological

_WIDE_COST = 12.0
"""Cost of float64 arithmetic, in additions."""
_RADII = (0.004, 0.015, 0.04, 0.1, 0.25, 0.5, 0.8)
"""Of polynomials about a centre, relative to its distance from 0."""
_TAIL_RADII = (2.0**-12, 2.0**-6, 2.0**-4)
_FAR = 2.0**13
_OVERFLOW = parse("exp(1000)")
"""Infinity, in every type."""
_NEAR, _MOST_HOLES = 50.0, 4
"""Largest magnitude of roots and holes, and how many holes: periodic functions have infinitely many."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """A term and whether it is computed in float64."""

    term: Term
    wide: bool

    @property
    def cost(self) -> float:
        """Approximate cost in additions, shared parts counted once."""
        order = topological([self.term])
        ops = sum(t.value.cost if t.op == POLY else 0.05 if t.op in LEAVES else OPS[t.op].cost for t in order)
        return ops + _WIDE_COST * self.wide


def errors_of(choices: Sequence[Implementation], samples: TargetSamples, dtype: torch.dtype) -> Floats:
    """Errors in ulp of each implementation, one row each."""
    measure = UlpMeasure(samples.exact, dtype)
    narrow = samples.tensors(working(dtype))
    wide = {name: x.double() for name, x in narrow.items()}
    known: tuple[dict[Term, Tensor], dict[Term, Tensor]] = ({}, {})
    values = [evaluate(c.term, wide if c.wide else narrow, known[c.wide]).to(dtype) for c in choices]
    return np.stack([measure.ulp(v).numpy() for v in values])


def fitted_polynomials(
    target: Term, name: str, samples: TargetSamples, widths: Sequence[bool], dtype: torch.dtype
) -> Iterator[Implementation]:
    """Yield polynomials about 0, roots and holes of a univariate target, and in 1/x towards infinity."""
    x = samples.points[name]
    centres = [(0.0, 0.0)] if x.min() <= 0 <= x.max() else []
    centres = list(
        dict.fromkeys(
            [*centres, *_sign_change_centres(target, name, samples)[:6], *_hole_centres(target, name, samples)]
        )
    )
    for centre in centres:
        reach = abs(centre[0]) or 4.0
        for wide in widths:
            for term in fits(
                target, name, centre, [reach * r for r in _RADII], torch.float64 if wide else working(dtype)
            ):
                yield Implementation(term, wide)
    for side, reached in ((1, x.max() > _FAR), (-1, x.min() < -_FAR)):
        for wide in widths if reached else ():
            for term in tails(target, name, side, _TAIL_RADII, torch.float64 if wide else working(dtype)):
                yield Implementation(term, wide)


def patches(
    target: Term, name: str, bad: TargetSamples, widths: Sequence[bool], dtype: torch.dtype
) -> Iterator[Implementation]:
    """Yield polynomials for the stretches where every other implementation fails."""
    x = bad.points[name]
    x = x[(abs(x) > 1e-3) & (abs(x) < 1e3)]
    # points that are close to each other, relative to their distance from 0, are one stretch
    stretches = np.split(x, 1 + np.flatnonzero(np.diff(x) > 0.1 * (0.2 + abs(x[:-1]))))
    for stretch in filter(len, stretches[:4]):
        length = stretch[-1] - stretch[0]
        count = min(4, int(np.ceil(length / (0.5 + 0.2 * abs(stretch[0]))))) or 1
        for low, high in pairwise(np.linspace(stretch[0], stretch[-1], count + 1)):
            centre = float(np.float32(f"{(low + high) / 2:.3g}"))
            radius = max((high - low) / 2, 0.02 * abs(low)) * 1.1
            for wide in widths:
                for term in fits(target, name, (centre, 0.0), [radius], torch.float64 if wide else working(dtype)):
                    yield Implementation(term, wide)


def extremes(bad: TargetSamples, dtype: torch.dtype) -> Iterator[Implementation]:
    """Yield 0 and infinity for places where a target vanishes or overflows and every implementation is a nan."""
    limits = torch.finfo(dtype)
    if (abs(bad.exact) < limits.smallest_normal).any():
        yield Implementation(const(0), False)
    for sign, beyond in ((1, bad.exact > limits.max), (-1, bad.exact < -limits.max)):
        if beyond.any():
            yield Implementation(_OVERFLOW if sign == 1 else Term("neg", (_OVERFLOW,)), False)


def clamped(choice: Implementation, dtype: torch.dtype) -> Implementation:
    """Implementation whose exponentials end at the largest number: 0·eˣ is then 0 and not NaN."""
    # the largest integer whose exponential is finite
    limit = const(int(np.log(torch.finfo(torch.float64 if choice.wide else working(dtype)).max)))
    made: dict[Term, Term] = {}
    for term in topological([choice.term]):
        args = tuple(made[a] for a in term.args)
        if term.op in ("exp", "expm1"):
            args = (Term("minimum", (args[0], limit)),)
        made[term] = Term(term.op, args, term.value)
    return Implementation(made[choice.term], choice.wide)


def _hole_centres(target: Term, name: str, samples: TargetSamples) -> list[tuple[float, float]]:
    """Points where a univariate target has a limit and its term no value, nearest to 0 first."""
    x = samples.points[name]
    computed = evaluate(target, {name: torch.from_numpy(x)}).numpy()
    holes = np.unique(x[~np.isfinite(computed) & np.isfinite(samples.exact) & (abs(x) < _NEAR)])
    return [(float(c), 0.0) for c in holes[np.argsort(abs(holes), kind="stable")][:_MOST_HOLES]]


def _sign_change_centres(target: Term, name: str, samples: TargetSamples) -> list[tuple[float, float]]:
    """Roots of a univariate target with a change of sign, nearest to 0 first, as sums of two floats."""
    x, value = samples.points[name], samples.exact
    sign = np.sign(value)
    near = (abs(x[:-1]) < _NEAR) & np.isfinite(value[:-1] + value[1:])
    found = [(float(r), 0.0) for r in x[(value == 0) & (abs(x) < _NEAR)][:6]]
    for i in np.flatnonzero((sign[:-1] * sign[1:] < 0) & near)[:12]:
        with suppress(ValueError):  # a pole or a jump
            found.append(root_between(target, name, float(x[i]), float(x[i + 1])))
    return sorted((r for r in dict.fromkeys(found) if abs(r[0]) > 1e-6), key=lambda r: abs(r[0]))
