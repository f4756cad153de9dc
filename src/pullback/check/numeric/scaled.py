"""Subjects that mix elements, on their example scaled up, scaled down and shifted: float32 and 16 bits against float64.

Interpreted kernels run as they are written, and with gates alone scaled, too.

The float64 run gets exactly the numbers of the other one. It is the reference for a tensor if it is finite and small
changes of the inputs change it little. For 16 bits there is a float32 run, too: errors that it shares are not counted.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.cases.layouts import widened
from pullback.check.cases.structure import has_unit_rows, is_structured
from pullback.check.find.kernels import as_written
from pullback.check.subject import Subject
from pullback.check.trial import Raised, forward, standard_cotangents, vjp
from pullback.dtypes import has_reals

_FACTORS = (1.0, 10.0, 100.0, 1e3, 1e4, 0.1, 1e-2, 1e-3, 1e-4)
_GATE_FACTORS = (10.0, 30.0)
"""Those for one input alone of interpreted kernels, whose elements have one sign.

It may hold gates, which kernels add up: their sum over a block shall overflow exp in float32, but not in float64.
"""
_SHIFTS = (100.0, 1000.0)
_NARROW_FACTORS = (1.0, 10.0, 100.0)
# So the condition number of the whole is at most 2²⁰, and a rounding of 2⁻⁵³ at the start of the float64 run costs
# about 2⁻³³ of the largest element, 1/512 of half an ulp of float32.
_STEADY_BY, _STEADY = 2.0**-44, 2.0**-24
"""Relative change of the inputs, and the change of a tensor that it may cause, of its largest element."""
_NEAR = 2.0**-13
"""Error, relative to the largest element, below which no rule reports anything."""
_STEADY_RUNS, _SPREAD_RUNS = 2, 6
_BISECTIONS, _FEW_BISECTIONS = 12, 4


Change = Callable[[Case, float], Case]
"""Changes numbers of an example by an amount."""


@dataclass(frozen=True)
class ScaledResult:
    """Results for one tensor in a dtype, with those in float64.

    Attributes:
        label: "value" or "gradient of x".
        dtype: the dtype.
        got: the result in it, as float64.
        right: the result in float64.
        inside: for 16 bits, the result computed in float32 and rounded at the end.
    """

    label: str
    dtype: torch.dtype
    got: Tensor
    right: Tensor
    inside: Tensor | None = None

    @property
    def size(self) -> float:
        """The largest element."""
        return float(self.right.abs().max())

    @property
    def is_within_range(self) -> bool:
        """Whether all of it is finite in the dtype."""
        return self.size <= torch.finfo(self.dtype).max

    @property
    def worst(self) -> int:
        """Index of a non-finite element, or else of the largest error."""
        return int((self.got - self.right).abs().nan_to_num(nan=torch.inf).argmax())

    def error(self, usual: float) -> float:
        """Return the largest error, relative to the largest element or, if that is larger, to the usual one."""
        return self._error_of(self.got, usual)

    @property
    def error_inside(self) -> float:
        """The error of the float32 computation, relative to the largest element."""
        return 0.0 if self.inside is None else self._error_of(self.inside, 0.0)

    def _error_of(self, x: Tensor, usual: float) -> float:
        size = max(self.size, usual)
        return float((x - self.right).abs().max()) / size if size else 0.0


@dataclass(frozen=True)
class Scaled:
    """A variant of the example, run in both dtypes.

    Attributes:
        case: the variant, in the narrower dtype.
        label: its change of the example.
        example: what is changed.
        change: applies it to the example, by a factor or a shift.
        amount: the factor or the shift.
        tensors: values and gradients for which float64 is a reference.
    """

    case: Case
    label: str
    example: Case
    change: Change
    amount: float
    tensors: tuple[ScaledResult, ...]

    @property
    def dtype(self) -> torch.dtype:
        """The narrower dtype."""
        return self.case.tensors[0].dtype

    @property
    def largest(self) -> float:
        """The largest number among the inputs."""
        return max(float(t.abs().max()) for t in self.case.tensors)


def scaled(subject: Subject, base: Case, leaves_out: Callable[[Case], bool] = lambda _: False) -> Iterator[Scaled]:
    """Yield the example multiplied and moved by various amounts, as far as the subject takes these.

    After an amount that is left out, since the subject did not return from it, come no others.

    What is one number beside tensors of several stays: an exponent, a temperature. Square matrices are not moved: a
    constant that is added to every element leaves hardly anything of their rank.
    """
    if any(t.is_complex() or not t.numel() for t in base.tensors):
        return
    for change, amount, dtype in _changes(subject, base):
        case = cast(change(base, amount), dtype)
        if leaves_out(case) or leaves_out(widened(case)):
            return
        yield from measured(subject, base, change, amount, dtype)


def _changes(subject: Subject, base: Case) -> Iterator[tuple[Change, float, torch.dtype]]:
    if subject.is_interpreted:
        yield _times, 1.0, torch.float32
        several = any(t.numel() > 1 for t in base.tensors)
        tensors = [p for p in base.wrt if base.values[p].ndim and not (several and base.values[p].numel() == 1)]
        free = [p for p in tensors if not _is_bounded(base.names[p], base.values[p])]
        gates = [p for p in free if _has_one_sign(base.values[p])]
        for p, factor in itertools.product(gates, _GATE_FACTORS):
            yield functools.partial(_times_alone, p), factor, torch.float32
        if free:
            yield functools.partial(_times_some, free), _FACTORS[2], torch.float32
        return
    yield from ((_times, factor, torch.float32) for factor in _FACTORS)
    yield from ((_times, factor, dtype) for dtype in (torch.bfloat16, torch.float16) for factor in _NARROW_FACTORS)
    if not any(is_structured(t) or (t.ndim > 1 and t.shape[-1] == t.shape[-2]) for t in base.tensors):
        yield from ((_plus, shift, torch.float32) for shift in _SHIFTS)


def measured(
    subject: Subject,
    base: Case,
    change: Change,
    amount: float,
    dtype: torch.dtype = torch.float32,
) -> Iterator[Scaled]:
    """Yield the example changed by one amount, run in a dtype and in float64; nothing if the subject refuses it."""
    case = cast(change(base, amount), dtype)
    wide = widened(case)
    try:
        with as_written(subject.is_interpreted):
            got = results(subject, case)
            inside = results(subject, cast(case, torch.float32)) if dtype.itemsize == 2 else [("", None)] * len(got)
        right = results(subject, wide)
        runs = 0 if all(map(_agree, got, right)) else _STEADY_RUNS
        nudged_runs = [results(subject, _nudged(wide, _STEADY_BY, seed)) for seed in range(runs)]
    except Raised:
        return
    pairs = [
        ScaledResult(name, dtype, g.double(), r, None if i is None else i.to(dtype).double())
        for (name, g), (_, i), (_, r), *others in zip(got, inside, right, *nudged_runs, strict=True)
        if g.shape == r.shape and r.numel() and _is_steady(r, [t for _, t in others])
    ]
    yield Scaled(case, case.label, base, change, amount, tuple(pairs))


def _times(base: Case, factor: float) -> Case:
    return _changed(base, lambda t: t * factor, f"inputs times {factor:.6g}")


def _times_some(positions: list[int], base: Case, factor: float) -> Case:
    return base.with_values({p: base.values[p] * factor for p in positions}, f"inputs times {factor:.6g}")


def _is_bounded(name: str, t: Tensor) -> bool:
    """Whether a kernel may rely on the size of numbers: they are shares, or rows of length 1, or β of I − β w wᵀ."""
    most = 2 if name.rpartition(".")[2] == "beta" else 1
    return bool(((t >= 0) & (t <= most)).all()) or has_unit_rows(t)


def _has_one_sign(t: Tensor) -> bool:
    return bool((t <= 0).all() | (t >= 0).all())


def _times_alone(position: int, base: Case, factor: float) -> Case:
    return base.with_values({position: base.values[position] * factor}, f"{base.names[position]} times {factor:.6g}")


def _plus(base: Case, shift: float) -> Case:
    return _changed(base, lambda t: t + shift, f"inputs plus {shift:.6g}")


def _changed(base: Case, change: Callable[[Tensor], Tensor], label: str) -> Case:
    several = any(t.numel() > 1 for t in base.tensors)
    return base.map_inputs(lambda t: t if several and t.numel() == 1 else change(t), label)


def results(subject: Subject, case: Case) -> list[tuple[str, Tensor]]:
    """Return the floating outputs, and the gradient of each input, with their names.

    Raises:
        Raised: if the forward or the backward raises.
    """
    run = forward(subject, case)
    values = [("value", out.detach()) for out in run.outputs if out.is_floating_point()]
    gradients = vjp(run, standard_cotangents(run.roots, run.differentiable))
    names = [f"gradient of {case.names[p]}" for p in case.wrt]
    return values + [(n, g.detach()) for n, g in zip(names, gradients, strict=True) if g is not None]


def spread(subject: Subject, trial: Scaled, which: int, label: str) -> float:
    """Relative change of a tensor under a change of its inputs by one float32 ulp."""
    wide = widened(trial.case)
    nth = [result.label for result in trial.tensors[:which]].count(label)
    most = 0.0
    for seed in range(_SPREAD_RUNS):
        there = [t for name, t in results(subject, _nudged(wide, 2.0**-23, seed)) if name == label]
        result = trial.tensors[which]
        most = max(most, float((there[nth] - result.right).abs().max()) / result.size)
    return most


def _agree(got: tuple[str, Tensor], right: tuple[str, Tensor]) -> bool:
    """Whether a tensor is so near its reference that nobody asks whether that is steady."""
    there, here = got[1].double(), right[1]
    return there.shape == here.shape and bool(((there - here).abs() <= _NEAR * here.abs().amax()).all())


def _is_steady(right: Tensor, others: Sequence[Tensor]) -> bool:
    if not bool(torch.isfinite(right).all()):
        return False
    size = float(right.abs().max())
    return all(o.shape == right.shape and float((o - right).abs().max()) <= _STEADY * size for o in others)


def _nudged(case: Case, by: float, seed: int) -> Case:
    """Return the case with every differentiated number changed by a random part of itself, up to `by`."""
    generator = torch.Generator().manual_seed(seed)

    def nudged(t: Tensor) -> Tensor:
        return t * (1 + by * (2 * torch.rand(t.shape, generator=generator, dtype=t.dtype) - 1))

    return case.map_distinct(case.wrt, nudged)


def cast(case: Case, dtype: torch.dtype) -> Case:
    """Return the case with its floating tensors in a dtype; one passed twice stays one."""
    floating = [p for p, t in case.all_tensors.items() if has_reals(t)]
    return case.map_distinct(floating, lambda t: t.to(dtype))


def first_bad(subject: Subject, trial: Scaled, bad: Callable[[Scaled], bool]) -> Scaled:
    """Return the trial with the least change that is bad, by bisection between the example and a bad trial."""
    # Between factors by the geometric mean: 12 steps leave of 1 to 10⁴ an interval of ratio 10^(4 / 2¹²) = 1.002.
    is_shift = trial.change is _plus
    good, found = (0.0 if is_shift else 1.0), trial
    for _ in range(_FEW_BISECTIONS if subject.is_interpreted else _BISECTIONS):
        middle = (good + found.amount) / 2 if is_shift else (good * found.amount) ** 0.5
        there = next(measured(subject, trial.example, trial.change, middle, trial.dtype), None)
        if there is None:
            return found
        if bad(there):
            found = there
        else:
            good = middle
    return found
