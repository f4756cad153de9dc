"""One part of an exhaustive measurement: 2²⁰ consecutive float32 inputs of a function of one variable.

Exact values come from float64 bounds where these are within 2⁻⁸ ulp of each other (which makes an error in ulp correct
to 0.004), and from the oracle elsewhere. If too many points are left, the oracle evaluates some, and the rest count as
undecided. Bounds are the tighter ones of the term as written and of equal terms. They rest on an assumed error of
PyTorch's float64 kernels, which the oracle tests at the ends of each block and at random points inside: where it
refutes the assumption, the block is undecided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pullback.ops.bounds import Interval
from pullback.stable.enclose import enclose
from pullback.stable.formats import Floats, Mask, format_of
from pullback.stable.formula import Formula, Quantity
from pullback.stable.measure import run, summarise
from pullback.stable.oracle import Truth, exact
from pullback.stable.summary import Summary
from pullback.stable.term import Term

CHUNK = 2**20
"""Inputs in a chunk."""

_FINITE = tuple(i for i in range(2**32 // CHUNK) if (i * CHUNK >> 23) & 0xFF != 0xFF)

_FORMAT = format_of(torch.float32)
_BLOCK = 2**17
_SETTLED = 2.0**-8
_ASKED = 512
_TESTED = 4
"""Points of a block at which the bounds are tested, and at most how many are asked of the oracle."""


@dataclass(frozen=True, slots=True)
class Task:
    """Definition of a measurement, picklable for other processes.

    Attributes:
        load: returns the function.
        args: values of its fixed parameters.
        terms: the exact value and derivatives.
        references: for some of these, equal terms that float64 may evaluate more accurately.
        domain: closed interval of the inputs.
    """

    load: Callable[[], Callable[..., Any]]
    args: Mapping[str, Any]
    terms: dict[Quantity, Term]
    references: Mapping[Quantity, tuple[Term, ...]]
    domain: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Basis:
    """How exact values were had, in numbers of points and quantities.

    Attributes:
        bounded: by bounds in float64.
        asked: of the oracle.
        undecided: not at all.
        tested: at how many the bounds were compared with the oracle.
        refuted: at how many of these they did not hold.
    """

    bounded: int = 0
    asked: int = 0
    undecided: int = 0
    tested: int = 0
    refuted: int = 0

    def __str__(self) -> str:
        """Describe it in words."""
        undecided = f", {self.undecided} of neither" if self.undecided else ""
        held = "refuted" if self.refuted else "confirmed"
        tests = f"the oracle {held} the bounds at {self.refuted or self.tested} of {self.tested} points"
        return f"bounds in float64 ({self.bounded}) and the oracle ({self.asked}{undecided}); {tests}"

    def __add__(self, other: Basis) -> Basis:
        return Basis(
            self.bounded + other.bounded,
            self.asked + other.asked,
            self.undecided + other.undecided,
            self.tested + other.tested,
            self.refuted + other.refuted,
        )


@dataclass(frozen=True, slots=True)
class Part:
    """Result at some inputs: a summary per quantity."""

    summaries: tuple[Summary, ...]
    basis: Basis = field(default_factory=Basis)

    def __add__(self, other: Part) -> Part:
        pairs = zip(self.summaries, other.summaries, strict=True)
        return Part(tuple(a + b for a, b in pairs), self.basis + other.basis)


def chunks_of(domain: tuple[float, float]) -> list[int]:
    """Return the chunks that have numbers of a closed interval, by the upper bits of their patterns."""
    ends = [_inputs(index, np.array([0, CHUNK - 1])) for index in _FINITE]
    return [i for i, x in zip(_FINITE, ends, strict=True) if x.max() >= domain[0] and x.min() <= domain[1]]


def _inputs(index: int, offsets: np.ndarray[Any, Any]) -> Floats:
    """Return numbers of a chunk as float64."""
    pattern = (index * CHUNK + offsets).astype(np.uint32)
    return pattern.view(np.float32).astype(np.float64)


def measure_chunk(task: Task, index: int) -> Part:
    """Measure a chunk: of its numbers those in the domain."""
    formula = Formula(task.load(), task.args)
    (name,) = formula.variables
    x = _inputs(index, np.arange(CHUNK))
    x = x[(x >= task.domain[0]) & (x <= task.domain[1])]
    total = Part(tuple(Summary() for _ in task.terms))
    for start in range(0, len(x), _BLOCK):
        at = {name: x[start : start + _BLOCK]}
        truths, basis = _truths(task, at, seed=index + start)
        total += Part(tuple(summarise(run(formula, task.terms, torch.float32, at), truths, at)), basis)
    return total


def _truths(task: Task, at: dict[str, Floats], seed: int) -> tuple[list[Truth], Basis]:
    """Return the exact values at some points, and how they were had."""
    ((name, x),) = at.items()
    truths = _bounded(task, {name: torch.from_numpy(x)})
    tests = np.random.default_rng(seed).integers(0, len(x), _TESTED - 2)
    tests = np.unique(np.concatenate([[0, len(x) - 1], tests]))
    open_ = np.flatnonzero(np.logical_or.reduce([truth.undecided for truth in truths]))
    asked = open_[np.linspace(0, len(open_) - 1, min(len(open_), _ASKED), dtype=np.int64)] if len(open_) else open_
    points = np.union1d(tests, asked)
    answers = exact(list(task.terms.values()), {name: x[points]})
    basis = Basis()
    for truth, answer in zip(truths, answers, strict=True):
        basis += _merge(truth, answer, points)
    if basis.refuted and any(task.references.values()):  # a term among them may not be equal
        return _truths(replace(task, references={}), at, seed)
    return truths, basis


def _bounded(task: Task, points: Mapping[str, Tensor]) -> list[Truth]:
    """Return the truths that bounds settle: those of the terms and, where these are too wide, of their references."""
    bounds = enclose(list(task.terms.values()), points)
    truths = [_settled(interval) for interval in bounds]
    for i, quantity in enumerate(task.terms):
        others = task.references.get(quantity, ())
        if others and truths[i].undecided.any():
            truths[i] = _settled(reduce(_both, enclose(others, points), bounds[i]))
    return truths


def _both(own: Interval, other: Interval) -> Interval:
    """Return the intersection of two intervals; the first one where they are disjoint.

    Points without a value are those of the first: the other term may have been simplified.
    """
    low, high = torch.maximum(own.low, other.low), torch.minimum(own.high, other.high)
    return Interval(low, high, own.undefined) if bool((low <= high).all()) else own


def _merge(truth: Truth, answer: Truth, points: np.ndarray[Any, Any]) -> Basis:
    """Fill in the oracle's answers where the bounds are too wide, and test the bounds with its other answers."""
    left = truth.undecided[points]
    wrong = int((~left & _contradicts(truth, answer, points)).sum())
    if wrong:
        truth.undecided[:] = True
        left = np.ones_like(left)
    bounded = int((~truth.undecided).sum())
    chosen = points[left]
    truth.high[chosen], truth.low[chosen] = answer.high[left], answer.low[left]
    truth.undecided[chosen] = answer.undecided[left]
    tested = len(points) - int(left.sum()) if not wrong else len(points)
    return Basis(bounded, int((~answer.undecided[left]).sum()), int(truth.undecided.sum()), tested, wrong)


def _settled(interval: Interval) -> Truth:
    """Settle points by bounds: values within 2⁻⁸ ulp, values beyond float32's range, and points without a value."""
    low, high = interval.low.numpy(), interval.high.numpy()
    beyond = 2.0 ** (_FORMAT.max_exponent + 1)
    with np.errstate(over="ignore", invalid="ignore"):
        middle = low / 2 + high / 2
        close = high - low <= np.ldexp(2 * _SETTLED, _FORMAT.ulp_exponent(middle))
    value = np.where(low >= beyond, np.inf, np.where(high <= -beyond, -np.inf, middle))
    settled: Mask = close | np.isinf(value) & ((low >= beyond) | (high <= -beyond))
    undefined = np.zeros_like(settled) if interval.undefined is None else interval.undefined.numpy()
    value = np.where(settled & ~undefined, value, np.nan)
    return Truth(value, np.zeros_like(value), ~(settled | undefined))


def _contradicts(truth: Truth, answer: Truth, points: np.ndarray[Any, Any]) -> Mask:
    """Return the points at which the oracle contradicts the bounds."""
    high = truth.high[points]
    unit = _FORMAT.ulp_exponent(high)
    with np.errstate(over="ignore", invalid="ignore"):
        off = np.abs(np.ldexp(high - answer.high, -unit)) > _SETTLED
    both_beyond = (np.abs(high) > _FORMAT.largest) & (np.abs(answer.high) > _FORMAT.largest)
    off &= ~(both_beyond & (np.sign(high) == np.sign(answer.high)))
    differ: Mask = (off | (np.isnan(high) != np.isnan(answer.high))) & ~answer.undecided
    return differ
