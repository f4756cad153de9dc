"""The quick rule pass: forms of a formula and its derivatives by a few safe rules, in milliseconds, without a search.

A form is used only if, at points of all magnitudes, it is nowhere worse than the formula as written and somewhere
better. The reference is float64, so for float64 inputs the formula stays as written.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pullback.errors import DerivativeError, report_internal_error
from pullback.ops.registry import LOSSY_IN_AUTOGRAD
from pullback.stable import trial
from pullback.stable.certificate import By
from pullback.stable.derivative import derivative
from pullback.stable.evaluate import evaluate
from pullback.stable.formats import Floats, format_of, widened
from pullback.stable.formula import Formula, Quantity
from pullback.stable.meaning import Meaning
from pullback.stable.piecewise import Piecewise, emit
from pullback.stable.rewriting import rewrite, tidy, without_cancellation
from pullback.stable.rules import differentiable_rules, final_rules, final_rules_in_float64
from pullback.stable.singularities import removable_holes, singular_subterms, with_limits
from pullback.stable.term import Term, topological, variables
from pullback.stable.trial import Evaluation, TrialOutcome, compare, keeps_special_values, mpmath_limit, mpmath_value

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MOST_VARIABLES, _MOST_TERMS, _MOST_SINGULAR = 3, 400, 8
"""Limits of the pass, to keep it quick."""

Function = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class QuickForms:
    """Forms that replace a formula and its derivatives.

    Attributes:
        value: value of the formula; `None` if it stays as written.
        derivatives: derivatives of first and second order, by the positions of the variables.
        drafts: drafts of these derivatives.
        steeper: whether those of first order are better than autograd's.
        rules: the rules that were applied.
    """

    value: Function | None
    derivatives: Mapping[tuple[int, ...], Function]
    drafts: Mapping[tuple[int, ...], Draft]
    steeper: bool
    rules: tuple[str, ...]


@contextmanager
def without_side_effects() -> Iterator[None]:
    """Context for extra calls of a user's formula: warnings are silent, and the random state is restored."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        yield


def quick_forms(function: Callable[..., Any], meaning: Meaning, dtype: torch.dtype) -> QuickForms | None:
    """Forms that rules give of a formula; `None` if there are no better ones, or one might be worse."""
    if dtype not in _DTYPES or not 0 < len(meaning.variables) <= _MOST_VARIABLES:
        return None
    drafts = drafts_of(meaning)
    if drafts is None:
        return None
    locations = removable_holes(meaning.term, dtype)
    try:
        with torch.no_grad():
            locations = unfilled_holes(Formula(function), locations, dtype)
            bench = _Trial(Formula(function), meaning, dtype, _terms_with_roots(meaning.term, drafts), locations)
    except Exception as error:  # any error of a user's function, such as one that refuses float64 or the values
        report_internal_error(error, meaning.name)
        return None
    chosen: dict[By, Function] = {}
    used: dict[By, Draft] = {}
    better: dict[By, Sequence[str]] = {}
    for by, draft in drafts.items():
        if not (*draft.rules, *draft.last, *locations) and not by and bench.agrees(draft):
            continue
        found = bench.best(by, draft)
        if found is None:
            return None
        form, verdict, draft = found
        if verdict.better:
            better[by] = (*draft.rules, *draft.last, *(f"the limit at {at:g}" for at in locations))
        if verdict.better or by:
            chosen[by], used[by] = form, draft
    if not better:
        return None
    positions = {name: i for i, name in enumerate(meaning.variables)}
    return QuickForms(
        chosen.get(()),
        {tuple(positions[name] for name in by): form for by, form in chosen.items() if by},
        {tuple(positions[name] for name in by): draft for by, draft in used.items() if by},
        any(len(by) == 1 for by in better),
        tuple(dict.fromkeys(text for rules in better.values() for text in rules)),
    )


class _Inline(TorchFunctionMode):
    """Mode under which ops that a formula calls run inline, without a graph of their own."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True, slots=True)
class Draft:
    """A term for a quantity, and the rules that led to it.

    Attributes:
        base: the term before the last rules, which may only be applied to a term that is not differentiated further.
        term: the term after them.
        rules: those that led to `base`.
        last: those that led from `base` to `term`.
        wide: whether it is computed in float64.
        holes: points at which `term` takes the limits of `base`.
    """

    base: Term
    term: Term
    rules: tuple[str, ...]
    last: tuple[str, ...]
    wide: bool = False
    holes: tuple[float, ...] = ()

    @property
    def program(self) -> Piecewise:
        """Program of the term."""
        return Piecewise.of(self.term, self.wide)

    def derivative(self, by: str) -> Draft:
        """Draft of a derivative, made with the same rules.

        Raises:
            DerivativeError: if the table has no derivative for an op on the way.
        """
        used = dict.fromkeys(self.rules)
        raw = tidy(derivative(self.base, by))
        made = Draft.of(tidy(rewrite(raw, differentiable_rules(), used, to_fixpoint=True)), tuple(used), self.wide)
        return made.filled(made.base, by, self.holes)

    def filled(self, exact: Term, name: str, locations: Sequence[float]) -> Draft:
        """Draft with the limits that a term of one variable has at its holes."""
        return replace(self, term=with_limits(self.term, exact, name, locations), holes=tuple(locations))

    @classmethod
    def of(cls, base: Term, rules: Sequence[str], wide: bool = False) -> Draft:
        """Apply the last rules."""
        used: dict[str, None] = {}
        final = final_rules_in_float64() if wide else final_rules()
        term = tidy(rewrite(base, final, used, to_fixpoint=False))
        return cls(base, term, tuple(rules), tuple(used), wide)


def drafts_of(meaning: Meaning) -> dict[By, Draft] | None:
    """Rewritten terms of the value and the derivatives; `None` if no rule applies, or they are too large."""
    used: dict[str, None] = {}
    base = tidy(rewrite(tidy(meaning.term), differentiable_rules(), used, to_fixpoint=True))
    found: dict[By, Draft] = {}
    raw: dict[By, Term] = {(): base}
    for by in (by for n in range(3) for by in combinations_with_replacement(meaning.variables, n)):
        try:
            raw[by] = tidy(derivative(raw[by[:-1]], by[-1])) if by else base
        except DerivativeError:
            return None
        terms = topological([raw[by]])
        if len(terms) > _MOST_TERMS:
            return None
        applied = dict(used)
        raw[by] = tidy(rewrite(raw[by], differentiable_rules(), applied, to_fixpoint=True))
        better = [f"the derivative of {op}" for op in sorted({t.op for t in topological([base])} & LOSSY_IN_AUTOGRAD)]
        found[by] = Draft.of(raw[by], (*applied, *(better if by else ())))
    return found if any((*draft.rules, *draft.last) for draft in found.values()) else None


def _terms_with_roots(written: Term, drafts: Mapping[By, Draft]) -> list[Term]:
    """Terms whose roots are looked at: the results, and subterms at whose zeros an op is singular.

    Of several variables there are too many results of second order.
    """
    several = len({name for by in drafts for name in by}) > 1
    results = [draft.term for by, draft in drafts.items() if not several or len(by) < 2]
    return list(dict.fromkeys([*results, *singular_subterms([written, *results])[:_MOST_SINGULAR]]))


def unfilled_holes(formula: Formula, locations: list[float], dtype: torch.dtype) -> list[float]:
    """Holes of a term at which the formula gives NaN, and not a number of its author's choice."""
    if not locations:
        return locations
    (value,) = formula.run([torch.tensor(locations, dtype=dtype)], 0).values()
    return [place for place, is_nan in zip(locations, value.isnan().tolist(), strict=True) if is_nan]


class _Trial:
    """Trial of forms against the formula as written, at the same points."""

    def __init__(
        self,
        formula: Formula,
        meaning: Meaning,
        dtype: torch.dtype,
        terms: Sequence[Term],
        locations: list[float],
    ) -> None:
        self._holes = locations
        self._names, self._dtype = meaning.variables, dtype
        self._name, self._term = meaning.name, meaning.term
        self._format, self._single = format_of(dtype), format_of(torch.float32)
        groups = trial.trial_points(len(self._names), dtype)
        self._groups = trial.with_root_groups(groups, [self._in_float64(term) for term in terms], dtype)
        self._shape = self._groups[0].shape
        points = [torch.from_numpy(x.reshape(-1)) for x in self._groups]
        self._given, single = ([x.to(d) for x in points] for d in (dtype, torch.float32))
        self._special = [torch.from_numpy(x).to(dtype) for x in trial.special_points(len(self._names))]
        with _Inline():
            self._written, self._written_special = (formula.run(xs, 2) for xs in (self._given, self._special))
            self._written_narrow = self._written if dtype == torch.float32 else formula.run(single, 2)
            self._written_wide = formula.run(points, 2)
        self._narrow, self._wide = (dict(zip(self._names, xs, strict=True)) for xs in (single, points))
        self._known: tuple[dict[Term, Tensor], dict[Term, Tensor]] = ({}, {})

    def best(self, by: By, narrow: Draft) -> tuple[Function, TrialOutcome, Draft] | None:
        """Best form of a quantity, with the verdict and its draft; `None` if each is worse somewhere."""
        of = Quantity(0, by)
        written = self._way(self._written[of], self._written_narrow[of], self._written_wide[of])
        free = {name for name in set(self._names) - set(variables(narrow.term)) if by and not self._shows(name, of)}
        target = self._term
        for name in by:
            target = derivative(target, name)
        (target,) = without_cancellation([target])

        @cache
        def exactly(row: int, place: int) -> float | None:
            point = {n: float(x[row, place]) for n, x in zip(self._names, self._groups, strict=True)}
            if (at := point[self._names[0]]) in self._holes:
                return mpmath_limit(target, self._names[0], at)
            return mpmath_value(target, point)

        for draft in self._both(narrow):
            draft = draft.filled(target, self._names[0], self._holes)
            form = emit(draft.program, self._names, self._dtype, " ".join((self._name, *by)), free)
            values = (evaluate(draft.term, at, self._known[i]) for i, at in enumerate((self._narrow, self._wide)))
            way = self._way(form(*self._given), *values)
            verdict = compare(way, written, self._format, self._single, exactly)
            special, wanted = widened(form(*self._special)), widened(self._written_special[of])
            if len(by) == 2:  # at a pole it may be of either sign, and so their sum
                wanted = np.where(np.isinf(wanted), np.nan, wanted)
            if not verdict.worse and keeps_special_values(special, wanted, self._format):
                return form, verdict, draft
        return None

    def _shows(self, name: str, of: Quantity) -> bool:
        """Whether a quantity of the formula as written is NaN wherever a variable is.

        For the derivative of x·y by y it is not, in y; for that of trunc(log x), which is 0 elsewhere, it is.
        """
        at = self._special[self._names.index(name)].isnan()
        return bool(self._written_special[of][at].isnan().all())

    @staticmethod
    def _both(narrow: Draft) -> Iterator[Draft]:
        """Yield a draft, and one for float64, if that is asked for."""
        yield narrow
        yield Draft.of(narrow.base, narrow.rules, wide=True)

    def agrees(self, draft: Draft) -> bool:
        """Whether the term of the value has a value wherever the formula has one: it may be more than its term."""
        form = emit(Piecewise.of(draft.term), self._names, self._dtype, self._name)
        both = ((self._given, self._written), (self._special, self._written_special))
        return not any(bool((form(*xs).isnan() & ~written[Quantity(0, ())].isnan()).any()) for xs, written in both)

    def _in_float64(self, term: Term) -> Callable[[Sequence[Floats]], Floats]:
        form = emit(Piecewise.of(term), self._names, torch.float64, self._name)
        return lambda points: widened(form(*map(torch.from_numpy, points)))

    def _way(self, *results: Tensor) -> Evaluation:
        return Evaluation(*(widened(x).reshape(self._shape) for x in results))
