"""Judgement of a form at fresh points: whether it is better than the formula as written, and whether worse anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from pullback.errors import FormulaError
from pullback.stable.certificate import By, Form
from pullback.stable.critical import beside, critical, singular
from pullback.stable.emit import emit
from pullback.stable.formats import Floats
from pullback.stable.formula import Formula, Quantity
from pullback.stable.infinities import Infinities
from pullback.stable.literals import moved_hole
from pullback.stable.oracle import Truth, exact
from pullback.stable.piecewise import Program
from pullback.stable.samples import Samples, sampled
from pullback.stable.search import Found, Search
from pullback.stable.ulp import Errors, errors

_FRESH = 1_000_003
"""The seed of the points that a form is judged by, which no search uses."""
_BETTER = 0.05
"""Smallest difference of errors that counts, in ulp."""
_GOOD, _FLOOR = 1.0, 4.0
"""Errors in ulp that are acceptable even if the formula as written has smaller ones: the largest of all points, and
one at a single point."""
_LOST = 2.0**22
"""An error in ulp with which no digit is right, so that a 0 is no worse."""

Lowering = Callable[[Callable[..., Tensor]], Callable[..., Tensor]]
"""Returns a function of tensors as the kernels that run it."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A form, and whether it is better than the formula as written, or worse and not good in itself."""

    form: Form
    better: bool
    worse: bool


def judged(formula: Formula, search: Search, by: By, names: Sequence[str], lowering: Lowering | None) -> Judged:
    """Choose the best program for a quantity, as measured at fresh points and at infinite inputs."""
    found = search.find(*by)
    fresh = _points(found, names, search)
    if not len(fresh):
        return Judged(Form(Program.of(found.target), "no point of the domain has a value"), False, False)
    bench = _Bench(formula, search, by, names, fresh, found)
    tried = [(program, bench.errors(program.run(bench.inputs))) for program in bench.candidates()]
    limit = min(_size(e)[1] for _, e in tried) + _BETTER
    program, after = min(tried, key=lambda pair: (bench.worse(pair[1]), _size(pair[1])[0], _size(pair[1])[1] > limit))
    program, kept = bench.kept(program)
    if lowering is not None:
        compiled = lowering(emit(program, names, search.dtype, "a form"))
        after = after.worst(bench.errors(compiled(*(bench.inputs[n] for n in names))))
    how = "every number" if search.dtype.itemsize == 2 and len(names) == 1 else f"a sample of {len(fresh)}"
    if bench.written is None:
        said = f"{_worst(after, fresh.points)}; as written there is no kernel; {how}"
        return Judged(Form(program, said), better=True, worse=False)
    said = f"{_worst(after, fresh.points)}; as written {_worst(bench.written, fresh.points)}; {how}"
    (spurious, ulp), (spurious_before, ulp_before) = _size(after), _size(bench.written)
    return Judged(
        Form(program, said),
        better=(spurious, ulp + _BETTER) < (spurious_before, ulp_before),
        worse=not kept or bench.worse(after) or (spurious, ulp) > (spurious_before, max(ulp_before + _BETTER, _GOOD)),
    )


def _points(found: Found, names: Sequence[str], search: Search) -> Samples:
    """Return fresh points: a sample, and the neighbourhood of every root, pole and hole.

    Raises:
        FormulaError: if there is no exact value to compare with around a hole.
    """
    target, seed = found.target, search.seed + _FRESH
    fresh = sampled(target, names, search.dtype, seed, search.domain)
    if len(names) > 1 or not len(fresh):
        return fresh
    if holes := singular(target, names[0], fresh, search.dtype):
        near = beside(target, names, holes, search.dtype, seed, search.domain)
        if moved := moved_hole(target, near):
            at = float(near.points[names[0]][moved[1]])
            raise FormulaError(
                f"{moved[0]} is rounded, and near {names[0]} = {at:.6g} that changes the value or a derivative: what "
                "is meant there has no exact value to measure against"
            )
    places = critical(target, names[0], fresh, search.dtype) if search.dtype.itemsize > 2 else []
    return fresh.and_(beside(target, names, places, search.dtype, seed, search.domain)) if places else fresh


class _Bench:
    """The formula as written at the fresh points, with which forms are compared.

    Attributes:
        inputs: the points as tensors.
        written: errors of the formula as written; `None` if PyTorch has no kernel for this dtype.
    """

    def __init__(
        self, formula: Formula, search: Search, by: By, names: Sequence[str], fresh: Samples, found: Found
    ) -> None:
        self._truth: Truth = exact([found.target], fresh.points)[0]
        self._found, self._wide = found, search.wide != "never" and search.dtype.itemsize > 2
        self.inputs = fresh.tensors(search.dtype)
        self.written: Errors | None = None

        def written(tensors: Sequence[Tensor]) -> Tensor:
            return formula.run(tensors, len(by))[Quantity(0, by)]

        try:
            self.written = self.errors(written([self.inputs[n] for n in names]))
            self._infinities = Infinities(names, search.dtype, search.domain, len(by), written)
        except RuntimeError:
            return

    def candidates(self) -> Iterator[Program]:
        """Yield the program that the search found, and the formula's own term."""
        yield self._found.program
        yield Program.of(self._found.target)
        if self._wide:
            yield Program.of(self._found.target, wide=True)

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

    def kept(self, program: Program) -> tuple[Program, bool]:
        """Return a program that keeps the values at infinite inputs, and whether there is one."""
        if self.written is None:
            return program, True
        for one in (program, self._infinities.guarded(program, self._found.target)):
            if self._infinities.kept_by(one.run(self._infinities.points)):
                return one, True
        return program, False


def _size(found: Errors) -> tuple[int, float]:
    return int(found.spurious.sum()), float(found.ulp.max())


def _worst(found: Errors, points: Mapping[str, Floats]) -> str:
    i = int(np.argmax(found.ulp))
    at = ", ".join(f"{name} = {float(x[i]):.6g}" for name, x in points.items())
    kinds = ((found.nan, "NaN"), (found.inf, "inf"), (found.zero, "0"))
    bad = ", ".join(f"{int(mask.sum())} {what}" for mask, what in kinds if mask.any())
    return f"{float(found.ulp[i]):.3g} ulp at {at}" + (f", spurious {bad}" if bad else "")
