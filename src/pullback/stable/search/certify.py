"""From a formula to its certificate: a search for the value and each derivative, each judged against the original.

A form is judged at fresh points that no search has used, point by point: it may not be worse than the formula as
written anywhere, and has to be better somewhere. At infinite inputs, which no sample contains, PyTorch's values are the
reference: where the formula as written returns a number or an infinity, a form must as well, if need be by a last piece
that returns these values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pullback.errors import FormulaError, OptionError, PullbackError
from pullback.stable import trial
from pullback.stable.certificate import By, Certificate, Form, label
from pullback.stable.formats import DTYPES, Floats, format_of, widened
from pullback.stable.formula import Callee, Formula, Quantity
from pullback.stable.meaning import meaning_of
from pullback.stable.measure import Errors, errors
from pullback.stable.oracle.values import Truth, exact
from pullback.stable.parts import PartitionedFormula
from pullback.stable.piecewise import Piece, Piecewise, emit
from pullback.stable.sampling import Domain, TargetSamples, checked_domain, sample_target
from pullback.stable.search.search import FormSearch, FoundProgram, Wide
from pullback.stable.singularities import critical_points, moved_hole, samples_around, singular_points
from pullback.stable.term import Term, const, parse, var
from pullback.stable.trial import keeps_special_values

_OVERFLOW = parse("exp(1000)")
"""Infinity, in every type."""


class InfiniteInputs:
    """A quantity of the formula as written, at infinite inputs of its domain and at both zeros.

    Attributes:
        points: these inputs, without NaN.
    """

    def __init__(
        self,
        names: Sequence[str],
        dtype: torch.dtype,
        domain: Domain,
        order: int,
        written: Callable[[Sequence[Tensor]], Tensor],
    ) -> None:
        columns = trial.special_points(len(names))
        limits = [domain.get(name, (-math.inf, math.inf)) for name in names]
        inside = np.logical_and.reduce(
            [(x >= low) & (x <= high) for x, (low, high) in zip(columns, limits, strict=True)]
        )
        self._names, self._dtype = names, dtype
        self.points: Mapping[str, Tensor] = {
            name: torch.from_numpy(x[inside]).to(dtype) for name, x in zip(names, columns, strict=True)
        }
        self._wanted = self._required(widened(written(list(self.points.values()))), order)

    def _required(self, written: Floats, order: int) -> Floats:
        """Required values, NaN where any is allowed: the sample judges finite values at finite inputs.

        At a pole a second derivative may have either sign, like a sum of poles.
        """
        infinite = np.logical_or.reduce([np.isinf(widened(x)) for x in self.points.values()])
        required = np.where(infinite | np.isinf(written), written, np.nan)
        return np.where(np.isinf(required), np.nan, required) if order == 2 else required

    def kept_by(self, computed: Tensor) -> bool:
        """Whether values at `points` equal those of the formula as written wherever these are not NaN."""
        return keeps_special_values(widened(computed), self._wanted, format_of(self._dtype))

    def guarded(self, program: Piecewise, target: Term) -> Piecewise:
        """Program with a last piece for infinite inputs: of one variable its limits, of several the target."""
        largest = format_of(self._dtype).largest
        sizes = [Term("abs", (var(name),)) for name in self._names]
        size = sizes[0]
        for other in sizes[1:]:
            size = Term("maximum", (size, other))
        beyond = target if len(self._names) > 1 else self._limits(var(self._names[0]))
        return Piecewise(size, (Piece(program, largest), Piece(beyond)))

    def _limits(self, x: Term) -> Term:
        """Values of the formula as written at ±∞ as a term."""
        at = widened(self.points[self._names[0]])
        at_ends = [self._wanted[at == end] for end in (np.inf, -np.inf)]
        above, below = (_constant_of(float(value[0]) if len(value) else math.nan, x) for value in at_ends)
        return Term("where", (Term("gt", (x, const(0))), above, below))


def _constant_of(number: float, x: Term) -> Term:
    if math.isnan(number):
        return Term("sub", (x, x))  # NaN at infinity
    if math.isinf(number):
        return _OVERFLOW if number > 0 else Term("neg", (_OVERFLOW,))
    return const(number)


_FRESH = 1_000_003
"""The seed of the points that a form is judged by, which no search uses."""
_BETTER = 0.05
"""Smallest difference of errors that counts, in ulp."""
_GOOD, _FLOOR = 1.0, 4.0
"""Errors in ulp that are acceptable even if the formula as written has smaller ones: the largest of all points, and
one at a single point."""
_LOST = 2.0**22
"""Error in ulp at which no digit of float32 is right, so that a 0 is no worse: a number has 2²³ to 2²⁴ ulp."""

Lowering = Callable[[Callable[..., Tensor]], Callable[..., Tensor]]
"""Returns a function of tensors as the kernels that run it."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A form, and whether it is better than the formula as written, or worse and not good in itself."""

    form: Form
    better: bool
    worse: bool


def judge(formula: Formula, search: FormSearch, by: By, names: Sequence[str], lowering: Lowering | None) -> Judgement:
    """Choose the best program for a quantity, as measured at fresh points and at infinite inputs."""
    found = search.find(*by)
    fresh = _fresh_points(found, names, search)
    if not len(fresh):
        return Judgement(Form(Piecewise.of(found.target), "no point of the domain has a value"), False, False)
    # Besides what the search found, the formula's own term may be best: in float64, or where PyTorch's derivative is
    # worse than the term of the derivative.
    bench = _WrittenBaseline(formula, search, by, names, fresh, found)
    tried = [(program, bench.errors(program.run(bench.inputs))) for program in bench.candidates()]
    limit = min(_spurious_and_ulp(e)[1] for _, e in tried) + _BETTER
    program, after = min(
        tried,
        key=lambda pair: (bench.worse(pair[1]), _spurious_and_ulp(pair[1])[0], _spurious_and_ulp(pair[1])[1] > limit),
    )
    program, kept = bench.kept(program)
    if lowering is not None:
        compiled = lowering(emit(program, names, search.dtype, "a form"))
        after = after.worst(bench.errors(compiled(*(bench.inputs[n] for n in names))))
    how = "every number" if search.dtype.itemsize == 2 and len(names) == 1 else f"a sample of {len(fresh)}"
    if bench.written is None:
        measured = f"{_worst_in_words(after, fresh.points)}; as written there is no kernel; {how}"
        return Judgement(Form(program, measured), better=True, worse=False)
    measured = (
        f"{_worst_in_words(after, fresh.points)}; as written {_worst_in_words(bench.written, fresh.points)}; {how}"
    )
    (spurious, ulp), (spurious_before, ulp_before) = _spurious_and_ulp(after), _spurious_and_ulp(bench.written)
    return Judgement(
        Form(program, measured),
        better=(spurious, ulp + _BETTER) < (spurious_before, ulp_before),
        worse=not kept or bench.worse(after) or (spurious, ulp) > (spurious_before, max(ulp_before + _BETTER, _GOOD)),
    )


def _fresh_points(found: FoundProgram, names: Sequence[str], search: FormSearch) -> TargetSamples:
    """Fresh points: a sample, and the neighbourhood of every root, pole and hole.

    Raises:
        FormulaError: if there is no exact value to compare with around a hole.
    """
    target, seed = found.target, search.seed + _FRESH
    fresh = sample_target(target, names, search.dtype, seed, search.domain)
    if len(names) > 1 or not len(fresh):
        return fresh
    if holes := singular_points(target, names[0], fresh, search.dtype):
        near = samples_around(target, names, holes, search.dtype, seed, search.domain)
        if moved := moved_hole(target, near):
            at = float(near.points[names[0]][moved[1]])
            raise FormulaError(
                f"{moved[0]} is rounded, and near {names[0]} = {at:.6g} that changes the value or a derivative: there "
                "is no exact value to measure against"
            )
    locations = critical_points(target, names[0], fresh, search.dtype) if search.dtype.itemsize > 2 else []
    return (
        fresh.merged_with(samples_around(target, names, locations, search.dtype, seed, search.domain))
        if locations
        else fresh
    )


class _WrittenBaseline:
    """The formula as written at the fresh points, with which forms are compared.

    Attributes:
        inputs: the points as tensors.
        written: errors of the formula as written; `None` if PyTorch has no kernel for this dtype.
    """

    def __init__(
        self,
        formula: Formula,
        search: FormSearch,
        by: By,
        names: Sequence[str],
        fresh: TargetSamples,
        found: FoundProgram,
    ) -> None:
        self._truth: Truth = exact([found.target], fresh.points)[0]
        self._found, self._wide = found, search.wide != "never" and search.dtype.itemsize > 2
        self.inputs = fresh.tensors(search.dtype)
        self.written: Errors | None = None

        def written(tensors: Sequence[Tensor]) -> Tensor:
            return formula.run(tensors, len(by))[Quantity(0, by)]

        try:
            self.written = self.errors(written([self.inputs[n] for n in names]))
            self._infinities = InfiniteInputs(names, search.dtype, search.domain, len(by), written)
        except RuntimeError:
            return

    def candidates(self) -> Iterator[Piecewise]:
        """Yield the program that the search found, and the formula's own term."""
        yield self._found.program
        yield Piecewise.of(self._found.target)
        if self._wide:
            yield Piecewise.of(self._found.target, wide=True)

    def errors(self, computed: Tensor) -> Errors:
        return errors(computed, self._truth)

    def worse(self, after: Errors) -> bool:
        """Whether the error at some point exceeds that of the formula as written there."""
        if self.written is None:
            return False
        lost = (after.nan | after.inf) & ~self.written.spurious
        lost |= after.zero & self.written.stated & (self.written.ulp < _LOST)
        normal = after.stated & self.written.stated & ~after.subnormal
        return bool(np.any(lost | (normal & (after.ulp > np.maximum(self.written.ulp, _FLOOR)))))

    def kept(self, program: Piecewise) -> tuple[Piecewise, bool]:
        """Program that keeps the values at infinite inputs, and whether there is one."""
        if self.written is None:
            return program, True
        for one in (program, self._infinities.guarded(program, self._found.target)):
            if self._infinities.kept_by(one.run(self._infinities.points)):
                return one, True
        return program, False


def _spurious_and_ulp(found: Errors) -> tuple[int, float]:
    return int(found.spurious.sum()), float(found.ulp.max())


def _worst_in_words(found: Errors, points: Mapping[str, Floats]) -> str:
    i = int(np.argmax(found.ulp))
    at = ", ".join(f"{name} = {float(x[i]):.6g}" for name, x in points.items())
    kinds = ((found.nan, "NaN"), (found.inf, "inf"), (found.zero, "0"))
    bad = ", ".join(f"{int(mask.sum())} {what}" for mask, what in kinds if mask.any())
    return f"{float(found.ulp[i]):.3g} ulp at {at}" + (f", spurious {bad}" if bad else "")


Progress = Callable[[int, int, str], None]
"""Callback: number of quantities that are done, number of all, and the name of the next."""


def certify(
    op: Callable[..., Any],
    dtype: torch.dtype = torch.float32,
    wide: Wide = "where-needed",
    domain: Domain | None = None,
    on_progress: Progress | None = None,
    lowering: Lowering | None = None,
) -> Certificate:
    """Search for stable forms of a pointwise formula, its first and its second derivatives.

    A form is accepted only if at fresh points it is better than the formula as written, differentiated by autograd;
    with `lowering` also when it runs in the lowered kernels.

    Raises:
        FormulaError: if it is not a pointwise formula of known ops, or no form is better than the formula as written.
        OptionError: for an unknown dtype, `wide` or variable of the domain.
        RunnerError: if python-flint is not installed.
    """
    if dtype not in DTYPES or dtype == torch.float64:
        raise OptionError(f"forms are searched for float32, bfloat16 and float16, not for {dtype}.")
    if wide not in ("never", "where-needed", "always"):
        raise OptionError(f'wide is "never", "where-needed" or "always", not {wide!r}.')
    written = Callee(op).formula  # an op may have stable forms already
    meaning, formula = meaning_of(written, dtype), Formula(written)
    term, names = meaning.term, meaning.variables
    search = FormSearch(term, checked_domain(meaning.name, names, domain), wide, dtype)
    wanted = [by for order in range(3) for by in combinations_with_replacement(names, order)]
    judgements = {}
    for done, by in enumerate(wanted):
        if on_progress:
            on_progress(done, len(wanted), label(by))
        judgements[by] = judge(formula, search, by, names, lowering)
    if on_progress:
        on_progress(len(wanted), len(wanted), "")
    if not any(j.better for j in judgements.values()):
        raise FormulaError(f"{formula.name} is as accurate as any form that was found")
    if lost := [label(by) for by, j in judgements.items() if j.worse]:
        raise FormulaError(f"{formula.name} has no form of {', '.join(lost)} as good as it is written")
    forms = {by: j.form for by, j in judgements.items()}
    made = f"pullback {version('pullback')}, torch {torch.__version__}"
    if lowering is not None:
        made += ", also in compiled kernels"
    return Certificate(formula.name, str(term), names, str(dtype).removeprefix("torch."), wide, "cpu", made, forms)


def certify_parts(
    op: Callable[..., Any],
    dtype: torch.dtype = torch.float32,
    wide: Wide = "where-needed",
    domain: Domain | None = None,
    on_progress: Progress | None = None,
) -> tuple[list[Certificate], list[tuple[str, str]]]:
    """Search for stable forms of a formula, or, if it is not pointwise, of its pointwise parts.

    Returns:
        The certificates, at least one, and the parts that stay as written, each with the reason.

    Raises:
        FormulaError: if no form is better than the formula as written, or the formula can neither be read nor cut.
        OptionError: for an unknown dtype, `wide` or variable of the domain.
        RunnerError: if python-flint is not installed.
    """
    target: Any = op
    is_op = getattr(type(op), "_is_pullback_op", False)
    written, lowering = (target._formula, target._lowering()) if is_op else (op, None)
    try:
        meaning_of(written, dtype)
    except PullbackError as error:
        whole = error
    else:
        return [certify(op, dtype, wide, domain, on_progress, lowering)], []
    try:
        cut = PartitionedFormula(written)
        cut.require_faithful()
    except FormulaError as error:
        raise FormulaError(f"{str(whole).rstrip('.')}; it is not cut into parts either: {error}") from None
    parts = cut.parts(dtype)
    inner = (name for part in parts for name in part.meaning.variables)
    domain = checked_domain(cut.name, list(dict.fromkeys((*cut.variables, *inner))), domain)
    found, left = [], []
    searched = set()
    for part in parts:
        what = (part.meaning.term, part.meaning.variables)
        if what in searched:
            continue
        searched.add(what)
        limits = {name: ends for name, ends in domain.items() if name in part.meaning.variables}
        try:
            found.append(certify(part.function, dtype, wide, limits, on_progress, lowering))
        except FormulaError as error:
            left.append((part.function.__name__, str(error)))
    if not found:
        why = "; ".join(reason for _, reason in left) or "no pointwise part of it can be wrong"
        raise FormulaError(f"{str(whole).rstrip('.')}; {why}")
    return found, left
