"""Errors of an elementwise subject over the whole range of a dtype, against its true values.

The truth is exact if the forward can be traced, else a float64 run of the function. Errors are weighed against the
usual size of a quantity; those that come from an unselected branch of `where` are told apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pullback import _torch
from pullback.check.case import copy_tensor
from pullback.check.derivative.oracle import divided_difference
from pullback.check.numeric.elementwise import ORDINARY, PASSED, Columns, Elementwise
from pullback.check.trial import Raised
from pullback.errors import DerivativeError, PullbackError
from pullback.stable.derivative import derivative, exact_derivative
from pullback.stable.evaluate import evaluate_all
from pullback.stable.formats import Floats, Mask, format_of, widened
from pullback.stable.formula import as_written
from pullback.stable.graphs import terms_of
from pullback.stable.measure import Errors, errors
from pullback.stable.oracle.balls import NEGLIGIBLE
from pullback.stable.oracle.values import Truth, exact
from pullback.stable.sampling import sample_points
from pullback.stable.term import Term, topological, variables

# A relative change of the input by 2⁻⁴³ that moves the result by at most 2⁻²⁸ means a condition number up to 2¹⁵. Then
# a rounding of 2⁻⁵³ within the float64 run costs about 2⁻³⁸, far below half an ulp of float32.
_BESIDE = tuple(k * 2.0**-44 for k in (-2, -1, 1, 2))
"""Relative offsets from a point at which the stability of a float64 run is tested."""
_STEADY = 2.0**-28
"""Relative change that counts as stable. 2⁻²⁴ is half an ulp of float32."""
_AROUND, _NOISE_STEP = (-4.0, -2.83, -1.79, 0.94, 2.06, 3.17), 2.0**-8
"""Where its noise is measured, in steps of a part of the input or, for a large one, of 1."""
_ROUNDED = 4
"""Errors up to so many times `eps` are those of rounding."""
_PIECE = 2**14
"""Most points in a run."""
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
    """A float64 run of the function itself; undecided where that is not finite, ill-conditioned or noisy."""

    def __init__(self, function: Elementwise) -> None:
        self.function = function

    def truths(self, at: Columns, dtype: torch.dtype, computed: Sequence[Tensor] = ()) -> list[Truth]:
        """Return the results of a float64 run; for points of float64 all undecided.

        Args:
            at: the points.
            dtype: their dtype.
            computed: results in that dtype. Where they are those of the float64 run, up to rounding, no more is run.
        """
        count = len(next(iter(at.values())))
        nothing = Truth(np.full(count, np.nan), np.zeros(count), np.ones(count, dtype=np.bool_))
        if dtype == torch.float64:
            return [nothing] * (1 + len(self.function.names))
        try:
            found = self._run(at)
            doubted = self._doubted(found, computed, dtype)
            return [_steady(high, *sides, doubted) for high, sides in zip(found, self._sides(at, doubted), strict=True)]
        except Raised:
            return [nothing] * (1 + len(self.function.names))

    def _doubted(self, found: Sequence[Floats], computed: Sequence[Tensor], dtype: torch.dtype) -> Mask:
        """Return the points of the rows in which a result differs by more than its rounding."""
        row, count = self.function.row, len(found[0])
        differ = [_differs(high, got, dtype) for high, got in zip(found, computed, strict=bool(computed))]
        anywhere = np.any(differ, axis=0) if differ else np.ones(count, dtype=np.bool_)
        rows = np.pad(anywhere, (0, -count % row)).reshape(-1, row).any(axis=1)
        doubted: Mask = np.repeat(rows, row)[:count]
        return doubted

    def _sides(self, at: Columns, doubted: Mask) -> list[tuple[list[Floats], list[Floats]]]:
        """Return for each quantity its values close to some points, and around them."""
        count = int(doubted.sum())
        if not count:
            return [([], [])] * (1 + len(self.function.names))
        there = {n: x[doubted] for n, x in at.items()}
        beside = [{n: x * (1 + d) for n, x in there.items()} for d in _BESIDE]
        around = [{n: x + p * _step(x) for n, x in there.items()} for p in _AROUND]
        found = self._run(self.function.joined([*beside, *around]))
        parted = (_parted(x, len(beside) + len(around), count) for x in found)
        return [(runs[: len(beside)], runs[len(beside) :]) for runs in parted]

    def _run(self, at: Columns) -> list[Floats]:
        """Run the function on all points, in pieces: a call of an interpreted kernel costs as much as many points."""
        row, count = self.function.row, len(next(iter(at.values())))
        piece = max(_PIECE // row, 1) * row
        runs = [
            self.function.run(torch.float64, {n: x[start : start + piece] for n, x in at.items()})
            for start in range(0, count, piece)
        ]
        return [np.concatenate([widened(t) for t in tensors]) for tensors in zip(*runs, strict=True)]


def _parted(x: Floats, parts: int, count: int) -> list[Floats]:
    """Return the results at `count` points of each part, from those of all parts joined."""
    return [part[:count] for part in np.split(x, parts)]


def _step(x: Floats) -> Floats:
    step: Floats = _NOISE_STEP * np.minimum(np.abs(x), 1.0)
    return step


def _differs(high: Floats, got: Tensor, dtype: torch.dtype) -> Mask:
    """Return where a result is neither the float64 one, up to rounding, nor beyond the range of its dtype."""
    rounded, got = torch.from_numpy(high).to(dtype).double(), got.double()
    with np.errstate(invalid="ignore"):
        close = (got - rounded).abs() <= _ROUNDED * torch.finfo(dtype).eps * rounded.abs()
    differs: Mask = (~(close | (got == rounded)) & rounded.isfinite()).numpy()
    return differs


def _steady(high: Floats, beside: Sequence[Floats], around: Sequence[Floats], doubted: Mask) -> Truth:
    steady = np.isfinite(high)
    if beside:
        there = high[doubted]
        with np.errstate(invalid="ignore", over="ignore"):
            moves = np.max([np.abs(b - there) for b in beside], axis=0)
            steady[doubted] &= np.maximum(moves, _noise(there, around)) <= _STEADY * np.abs(there)
    return Truth(np.where(steady, high, np.nan), np.zeros(len(high)), ~steady)


def _noise(high: Floats, around: Sequence[Floats]) -> Floats:
    """Return the noise in values around a point: their sixth divided difference, normalised.

    A difference that cancels, such as 1 - cos(1e-7), may be equal at all neighbours, and wrong by a per cent: a step.
    As the steps grow, high-order differences of a smooth function fade; those of a staircase do not.
    """
    # Steps of h ≤ 2⁻⁸ make the sixth difference of a smooth function, of order h⁶ y⁽⁶⁾, smaller by 2⁻⁴⁸ than its y⁽⁶⁾.
    samples = torch.from_numpy(np.array([*around, high]))
    noise: Floats = divided_difference(samples, [*_AROUND, 0.0]).abs().numpy()
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
        with torch.no_grad(), as_written(), _torch.without_fake_tensor_log():
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
    known = _within(at, _ORDINARY) & np.isfinite(true) & np.isfinite(got)
    if not known.any():
        return False
    size = min(1.0, usual(true, at))
    return bool((np.abs(true - got)[known] <= _ALIKE * np.maximum(np.abs(true[known]), size)).mean() >= _MOSTLY)


def usual(true: Floats, at: Columns) -> float:
    """Return how large values usually are at ordinary points."""
    known = np.abs(true[_within(at, _ORDINARY) & np.isfinite(true)])
    return float(np.median(known)) if len(known) else 0.0


def _within(at: Columns, bounds: tuple[float, float]) -> Mask:
    """Return the points whose magnitudes all lie between two bounds."""
    inside: Mask = np.all([(np.abs(x) >= bounds[0]) & (np.abs(x) <= bounds[1]) for x in at.values()], axis=0)
    return inside


_POINTS = 3000
_FEWER = 4
"""So many times fewer for kernels that are interpreted: each point there is a row, or an element of a small block."""
_STEPS = (-1.0, -0.83, -0.59, -0.37, -0.11, 0.137, 0.29, 0.53, 0.71, 1.0)
"""Many uneven steps, so that some values differ where neighbouring ones are as good as random, as sin(1e30)."""
_DOMAINS: tuple[tuple[float, float], ...] = (
    (-np.inf, np.inf),
    (0.0, np.inf),
    (2.0**-126, np.inf),
    (-1.0, 1.0),
    (0.0, 1.0),
    (2.0**-20, 1 - 2.0**-10),
)
"""Where a forward that raises at some values is measured: the first that it takes."""


@dataclass(frozen=True)
class SweptQuantity:
    """One quantity at every point of a sweep.

    Attributes:
        by: the input that it is differentiated by; empty for the value itself.
        computed: the subject's results.
        truth: the true values.
        errors: errors of the results.
        exact: whether the truth is the oracle's; else it is a float64 run of the subject.
        formula: the term of the value, if known.
    """

    by: str
    computed: Tensor
    truth: Truth
    errors: Errors
    exact: bool
    formula: Term | None

    @property
    def label(self) -> str:
        """Name of the quantity in messages."""
        return f"gradient of {self.by}" if self.by else "value"

    def within_range(self, dtype: torch.dtype) -> Mask:
        """Return where there is a true value, and a dtype holds it."""
        inside: Mask = np.abs(self.truth.high) <= torch.finfo(dtype).max
        return inside


class Sweeper:
    """Measures one elementwise subject.

    Attributes:
        function: the subject.
        terms: terms of the value and its derivatives, where the forward is a pointwise formula; else empty.
    """

    def __init__(self, function: Elementwise, seed: int = 0) -> None:
        self.function = function
        self._seed = seed
        self._wider = Wider(function)
        self.terms: list[Term] = []
        self._trusted = [False] * (1 + len(function.names))
        found = terms(function)
        if found is not None:
            self._trust(found)

    def _trust(self, found: list[Term]) -> None:
        try:
            at = self.points(torch.float64)
            self._trusted = believable(Exact(found).truths(at, torch.float64), self.function, at)
        except (PullbackError, Raised):  # an op without an exact value, or no ball arithmetic on this machine
            return
        self.terms = found

    @property
    def _count(self) -> int:
        return _POINTS // _FEWER if self.function.subject.is_interpreted else _POINTS

    def points(self, dtype: torch.dtype) -> Columns:
        """Return points over the whole range, in a domain that the forward takes.

        Raises:
            Raised: if it takes none that is tried.
        """
        last: Raised | None = None
        for low, high in _DOMAINS:
            domain = dict.fromkeys(self.function.names, (low, high))
            drawn = sample_points(self.function.names, dtype, self._seed, domain)
            at = _thinned(drawn, low, high, torch.finfo(dtype).tiny, self._count)
            try:
                self.function.run(dtype, at)
            except Raised as error:
                last = error
                continue
            return at
        assert last is not None
        raise last

    def measure(self, dtype: torch.dtype, at: Columns) -> list[SweptQuantity]:
        """Return the value, and the derivative by each input, at some points.

        Raises:
            Raised: if the subject refuses one of them.
        """
        computed = self.function.run(dtype, at)
        truths, exact = self.truths(dtype, at, computed)
        return [
            SweptQuantity(by, got, truth, errors(got, truth), known, self.terms[0] if self.terms else None)
            for k, (by, got, truth, known) in enumerate(
                zip(("", *self.function.names), computed, truths, exact, strict=True)
            )
        ]

    def truths(
        self, dtype: torch.dtype, at: Columns, computed: Sequence[Tensor] = ()
    ) -> tuple[list[Truth], list[bool]]:
        """Return the truth of each quantity, and whether it is exact; `computed` is as in `Wider.truths`."""
        wide = [] if all(self._trusted) else self._wider.truths(at, dtype, computed)
        known = Exact(self.terms).truths(at, dtype) if any(self._trusted) else wide
        return [known[k] if sure else wide[k] for k, sure in enumerate(self._trusted)], self._trusted

    def spread(self, dtype: torch.dtype, at: Columns) -> list[Floats]:
        """Change of the true value of each quantity within one ulp of each input.

        An input that was rounded answers for no less. At a kink or a jump it is the height of the step.
        """
        # |f(x + d) − f(x)| is about |f'(x) d|: an input that stands for all numbers within an ulp of it determines the
        # value no better, however exact the arithmetic is.
        form = format_of(dtype)
        moved = [
            {**at, name: x + step * np.ldexp(1.0, form.ulp_exponent(x))} for name, x in at.items() for step in _STEPS
        ]
        truths, _ = self.truths(dtype, self.function.joined([at, *moved]))
        found = []
        for truth in truths:
            here, *there = _parted(truth.high, 1 + len(moved), len(next(iter(at.values()))))
            with np.errstate(invalid="ignore"):
                moves = np.abs(np.array(there) - here)
            found.append(np.where(np.isnan(moves), np.inf, moves).max(axis=0))
        return found


def _thinned(at: Columns, low: float, high: float, least: float, count: int) -> Columns:
    """About `count` of the points, without subnormal ones, with 0 and ±1 if they lie in the domain."""
    step = max(1, len(next(iter(at.values()))) // count)
    normal = np.all([(x == 0) | (np.abs(x) >= least) for x in at.values()], axis=0)
    marks = np.array([x for x in (0.0, -0.0, 1.0, -1.0) if low <= x <= high])
    return {name: np.concatenate([x[normal][::step], marks]) for name, x in at.items()}


STEP = 0.25
"""Relative change between neighbouring inputs beyond which a point is at a step, a root, or chaotic."""


def weight(quantity: SweptQuantity, at: Columns) -> Floats:
    """Return the errors relative to the true value or, where that is larger, to its usual magnitude.

    The derivative 6e-8 of tanh at 9 may as well be 0, since elsewhere in a batch it is about 0.1. But 0.5 may not.
    """
    true = quantity.truth.high
    inside = np.isfinite(true) & common(at)
    size = usual(true, at)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.abs(quantity.computed.to(torch.float64).numpy() - true)
        relative = error / np.maximum(np.abs(true), size)
    return np.where(inside, np.nan_to_num(relative, nan=0.0, posinf=0.0), 0.0)


def common(at: Columns) -> Mask:
    """Return the points whose numbers are 0, or of a magnitude from 1e-8 to 10 000."""
    least, most = ORDINARY
    inside: Mask = np.all([(x == 0) | ((np.abs(x) >= least) & (np.abs(x) <= most)) for x in at.values()], axis=0)
    return inside


def traps(value: Term, by: str, at: Columns, dtype: torch.dtype) -> list[tuple[Term, Mask]]:
    """Return each branch of a formula that is not finite, or whose derivative is not, and where that is unselected."""
    # The gradient of where(c, a, b) is where(c, g, 0) a' + where(c, 0, g) b'. Where c holds, b' is multiplied by 0,
    # which gives NaN if b' is not finite. So does a factor of b' that is computed from a non-finite b.
    inputs = {name: torch.from_numpy(x).to(dtype) for name, x in at.items()}
    found = []
    for condition, branch, chosen_if in _branches(value):
        try:
            slope = derivative(branch, by)
        except DerivativeError:
            continue
        taken, here, there = evaluate_all([condition, branch, slope], inputs)
        unselected = taken.bool() != chosen_if
        spoilt = unselected & ~(_finite(here) & _finite(there))
        if bool(spoilt.any()):
            found.append((branch, spoilt.numpy()))
    return found


def masked(sweeper: Sweeper, at: Columns, quantity: SweptQuantity, k: int, dtype: torch.dtype, bad: Mask) -> Mask:
    """The bad points of a gradient that higher precision would not mend.

    An unselected branch of the forward is not finite there, or the gradient is NaN in float64 too, at points without
    overflow: a mask in the backward is multiplied by a non-finite value.
    """
    found = np.zeros_like(bad)
    if not quantity.by or not bad.any():
        return found
    if quantity.formula is not None:
        for _, where in traps(quantity.formula, quantity.by, at, dtype):
            found |= bad & where
    left = np.flatnonzero(bad & _within(at, PASSED) & ~found)
    if len(left):
        wide = sweeper.function.run(torch.float64, {name: x[left] for name, x in at.items()})
        found[left] = wide[k].isnan().numpy()
    return found


def _branches(value: Term) -> Iterator[tuple[Term, Term, bool]]:
    """Yield each branch that depends on an input: its condition, the branch, and the selecting node."""
    for term in topological([value]):
        if term.op == "where":
            condition, chosen, other = term.args
            for branch, chosen_if in ((chosen, True), (other, False)):
                if variables(branch):
                    yield condition, branch, chosen_if


def _finite(t: Tensor) -> Tensor:
    return torch.isfinite(t)
