"""True values of a function: exact ones if its forward can be traced, else a float64 run of the function."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pullback import _torch
from pullback.check.case import copy_tensor
from pullback.check.numeric.elementwise import Columns, Elementwise
from pullback.check.trial import Raised
from pullback.errors import PullbackError
from pullback.stable.formats import Floats, Mask, widened
from pullback.stable.graphs import terms_of
from pullback.stable.oracle import Truth, exact
from pullback.stable.reading import NEGLIGIBLE
from pullback.stable.removable import exact_derivative
from pullback.stable.term import Term
from pullback.stable.written import as_written

_BESIDE = tuple(k * 2.0**-44 for k in (-2, -1, 1, 2))
"""Relative offsets from a point at which the stability of a float64 run is tested."""
_STEADY = 2.0**-28
"""By how much, relative to the value, it may change there. 2⁻²⁴ is half a unit in the last place of float32."""
_AROUND, _NOISE_STEP = (-4.0, -2.83, -1.79, 0.94, 2.06, 3.17), 2.0**-8
"""Where its noise is measured, in steps of a part of the input or, for a large one, of 1."""
_ORDINARY = (2.0**-7, 2.0**4)
_ALIKE, _MOSTLY = 1e-6, 0.9
"""Relative difference within which terms and a float64 run agree, and at how many of the ordinary points they must."""


class Exact:
    """The oracle, on the terms of value and derivatives."""

    def __init__(self, terms: Sequence[Term]) -> None:
        self.terms = terms

    def truths(self, at: Columns, dtype: torch.dtype) -> list[Truth]:
        """Return the exact values."""
        return exact(self.terms, at, 2.0**-1074 if dtype == torch.float64 else NEGLIGIBLE)


class Wider:
    """A float64 run of the function itself; undecided where that is not finite, not steady or noisy."""

    def __init__(self, function: Elementwise) -> None:
        self.function = function

    def truths(self, at: Columns, dtype: torch.dtype) -> list[Truth]:
        """Return the results of a float64 run; for points of float64 all undecided."""
        count = len(next(iter(at.values())))
        nothing = Truth(np.full(count, np.nan), np.zeros(count), np.ones(count, dtype=np.bool_))
        if dtype == torch.float64:
            return [nothing] * (1 + len(self.function.names))
        try:
            here = self._run(at)
            beside = [self._run({n: x * (1 + d) for n, x in at.items()}) for d in _BESIDE]
            around = [self._run({n: x + p * _step(x) for n, x in at.items()}) for p in _AROUND]
        except Raised:
            return [nothing] * (1 + len(self.function.names))
        return [
            _steady(high, [run[k] for run in beside], _noise(high, [run[k] for run in around]))
            for k, high in enumerate(here)
        ]

    def _run(self, at: Columns) -> list[Floats]:
        return [widened(t) for t in self.function.run(torch.float64, at)]


def _step(x: Floats) -> Floats:
    step: Floats = _NOISE_STEP * np.minimum(np.abs(x), 1.0)
    return step


def _steady(high: Floats, beside: Sequence[Floats], noise: Floats) -> Truth:
    with np.errstate(invalid="ignore", over="ignore"):
        moves = np.max([np.abs(b - high) for b in beside], axis=0)
        steady = np.isfinite(high) & (np.maximum(moves, noise) <= _STEADY * np.abs(high))
    return Truth(np.where(steady, high, np.nan), np.zeros(len(high)), ~steady)


def _noise(high: Floats, around: Sequence[Floats]) -> Floats:
    """Return the noise in values around a point: their sixth divided difference, Σᵢ yᵢ / Πⱼ (pᵢ − pⱼ), normalised.

    A difference that cancels, such as 1 - cos(1e-7), may be equal at all neighbours, and wrong by a per cent: a step.
    As the steps grow, high-order differences of a smooth function fade; those of a staircase do not.
    """
    points = np.array([*_AROUND, 0.0])
    weights = 1 / np.prod(points[:, None] - points + np.eye(len(points)), axis=1)
    with np.errstate(invalid="ignore", over="ignore"):
        noise: Floats = np.abs((weights / np.linalg.norm(weights)) @ np.array([*around, high]))
    return np.where(np.isnan(noise), 0.0, noise)  # a finite point may have non-finite neighbours: see `beside`


def terms(function: Elementwise) -> list[Term] | None:
    """Return the terms of the value and of its derivatives; `None` where the forward is not a pointwise formula."""
    try:
        value = _traced(function, relaxed=False)
        slope = value if function.subject.relaxation is None else _traced(function, relaxed=True)
        return [value, *(exact_derivative(slope, name) for name in function.names)]
    except (PullbackError, Raised):
        return None


def _traced(function: Elementwise, relaxed: bool) -> Term:
    """Return the term of the forward, from a trace in float32: in float64 one that works in float32 inside has none."""
    case = function.case(torch.float32, {name: np.ones(1) for name in function.names})
    varying = [position for position in case.wrt if case.names[position] in function.names]
    call = function.subject.relaxation if relaxed else function.subject.call
    assert call is not None
    fixed = [copy_tensor(v) if isinstance(v, Tensor) else v for v in case.values]  # outside: a tracer sees no storage

    def value(*tensors: Tensor) -> list[Tensor]:
        moved = dict(zip(varying, tensors, strict=True))
        args, kwargs = _torch.tree_unflatten([moved.get(p, v) for p, v in enumerate(fixed)], case.spec)
        return [call(*args, **kwargs)]

    try:
        with torch.no_grad(), as_written(), _torch.quiet_fake_tensors():
            module = _torch.trace_ops(value, *(fixed[p] for p in varying))
        return terms_of(module, function.names)[0]
    except Exception as error:  # any error of a user's function or the tracer, or about a non-tensor in its graph
        raise Raised("tracing", error) from None


def believable(found: Sequence[Truth], function: Elementwise, at: Columns) -> list[bool]:
    """Return, for the value and each derivative, whether exact values and a float64 run agree at ordinary points.

    They do not if the backward is wrong, or no derivative on purpose, or if the trace differs from the code that runs.
    """
    try:
        computed = function.run(torch.float64, at)
    except Raised:
        return [False] * len(found)
    return [_agree(truth.high, widened(got), at) for truth, got in zip(found, computed, strict=True)]


def _agree(true: Floats, got: Floats, at: Columns) -> bool:
    known = _ordinary(at) & np.isfinite(true) & np.isfinite(got)
    if not known.any():
        return False
    size = min(1.0, usual(true, at))
    return bool((np.abs(true - got)[known] <= _ALIKE * np.maximum(np.abs(true[known]), size)).mean() >= _MOSTLY)


def usual(true: Floats, at: Columns) -> float:
    """Return how large values usually are at ordinary points."""
    known = np.abs(true[_ordinary(at) & np.isfinite(true)])
    return float(np.median(known)) if len(known) else 0.0


def _ordinary(at: Columns) -> Mask:
    ordinary: Mask = np.all([(np.abs(x) >= _ORDINARY[0]) & (np.abs(x) <= _ORDINARY[1]) for x in at.values()], axis=0)
    return ordinary
