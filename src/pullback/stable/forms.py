"""Stable replacements of a formula: from a certificate, from rules, from its parts, or with its holes filled.

At a removable hole c, where a formula is 0/0, its replacement is the Taylor polynomial about c, whose coefficients are
limits: d = x − c is 0 there, so that only its derivatives matter. Everywhere else it is the formula as written, to the
bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import factorial
from typing import Any

import torch
from torch import Tensor

from pullback import dispatch
from pullback.dispatch import World
from pullback.errors import DerivativeError, FormulaError, PullbackError
from pullback.stable import certificate
from pullback.stable.certificate import Certificate, Key
from pullback.stable.derivative import derivative
from pullback.stable.evaluate import evaluate
from pullback.stable.formula import Formula
from pullback.stable.jet import By, Function, first_order, gradients, nan_from
from pullback.stable.meaning import Meaning, meaning_of
from pullback.stable.parts import PartitionedFormula, substitute_forms
from pullback.stable.piecewise import emit
from pullback.stable.quick import QuickForms, unfilled_holes
from pullback.stable.rewriting import tidy
from pullback.stable.singularities import removable_holes
from pullback.stable.term import Term, parse
from pullback.stable.tower import MAX_ORDER, CompositeForms, DerivativeTower, Partials, composite_of
from pullback.stable.trial import mpmath_limit

DTYPES = {torch.float64: "float64", torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
DEVICE = "cpu"
"""Certificates hold for the kernels that they were measured on."""
_WIDTHS = (torch.float64, torch.float32)


@dataclass(frozen=True, slots=True)
class Forms:
    """Replacements of a formula: its value, and the value with derivatives of one and of two orders.

    Attributes:
        value, first: functions of `arity` tensors.
        composite: the same in PyTorch's ops, for transforms and tracers, with derivatives of several orders.
        recorded: used where autograd records in plain eager mode: with derivatives of every order.
        arity: number of tensors.
        certificates: their sources: one, or those of the formula's pointwise parts.
        rules: names of the rewrite rules used, if the quick rule pass made them.
        gradients: functions of inputs and cotangent, as values and with their first derivatives in graphs.
        derivatives: first and second derivatives of a pointwise formula, by ascending positions of inputs.
    """

    value: Callable[..., Any]
    first: Callable[..., Any]
    composite: CompositeForms
    recorded: Callable[..., Any]
    arity: int
    certificates: tuple[Certificate, ...] = ()
    rules: tuple[str, ...] = ()
    gradients: tuple[Callable[..., list[Tensor]], Callable[..., list[Tensor]]] | None = None
    derivatives: Mapping[tuple[int, ...], Callable[..., Tensor]] | None = None


Find = Callable[[Callable[..., Any], Meaning], Forms | None]
"""Looks up the forms of a pointwise formula with its meaning."""


def find_forms(formula: Callable[..., Any], dtype: torch.dtype, find: Find, parts: bool = True) -> Forms | None:
    """Forms of a formula, or the formula with the forms of its parts, if there are any and they may be."""
    try:
        meaning = meaning_of(formula, dtype)
    except PullbackError:
        return _forms_by_parts(formula, dtype, find) if parts else None
    return find(formula, meaning)


def _forms_by_parts(formula: Callable[..., Any], dtype: torch.dtype, find: Find) -> Forms | None:
    try:
        cut = PartitionedFormula(formula)
    except PullbackError:
        return None
    found = {part: forms for part in cut.parts(dtype) if (forms := find(part.function, part.meaning)) is not None}
    if not found or not cut.is_faithful():
        return None
    value, first, recorded = (
        substitute_forms(cut, {part: getattr(forms, order) for part, forms in found.items()}, dtype)
        for order in ("value", "first", "recorded")
    )
    composite = CompositeForms(
        lambda order: substitute_forms(cut, {part: forms.composite.of(order) for part, forms in found.items()}, dtype)
    )
    certificates = {c.key: c for forms in found.values() for c in forms.certificates}
    return Forms(value, first, composite, recorded, cut.arity, tuple(certificates.values()))


def key_of(meaning: Meaning, dtype: torch.dtype) -> Key:
    """Key under which the certificate of a formula is stored."""
    return (str(meaning.term), meaning.variables, DTYPES[dtype], DEVICE)


def forms_of_rules(
    found: QuickForms,
    formula: Callable[..., Tensor],
    meaning: Meaning,
    dtype: torch.dtype,
    written: Callable[..., Tensor],
) -> Forms:
    """Forms that the quick rule pass gives; `written` is the formula, for derivatives beyond the second."""
    value = formula if found.value is None else found.value
    arity = sum(len(by) == 1 for by in found.derivatives)
    slopes = [found.derivatives[(i,)] for i in range(arity)]
    curvatures = {by: form for by, form in found.derivatives.items() if len(by) == 2}
    first = first_order(value, slopes) if found.value is not None or found.steeper else formula
    partials = Partials({(): value, **found.derivatives}, found.drafts, meaning, dtype)
    composite, tower = composite_of(partials, written), DerivativeTower(partials.find, written)
    pair = _gradients(slopes, curvatures)
    recorded = _recorded(tower, composite)
    return Forms(
        value, first, composite, recorded, arity, rules=found.rules, gradients=pair, derivatives=found.derivatives
    )


def forms_of_certificate(found: Certificate, meaning: Meaning, written: Callable[..., Tensor]) -> Forms:
    """Forms of a certificate; `written` is its formula, for derivatives beyond the second.

    Raises:
        FormulaError: if they do not compute it.
    """
    names, dtype = found.variables, getattr(torch, found.dtype)
    made = {by: emit(form.program, names, dtype, " ".join((found.name, *by))) for by, form in found.forms.items()}
    _require_sound(found, dtype, made)
    value, slopes = made[()], [made[(name,)] for name in names]
    curvatures = {(i, j): made[names[i], names[j]] for i in range(len(names)) for j in range(i, len(names))}
    derivatives: dict[By, Callable[..., Tensor]] = {(i,): slope for i, slope in enumerate(slopes)}
    for by, curvature in curvatures.items():
        derivatives[by] = curvature
    programs = {tuple(names.index(name) for name in by): form.program for by, form in found.forms.items() if by}
    partials = Partials({(): value, **derivatives}, programs, meaning, dtype)
    composite, tower = composite_of(partials, written), DerivativeTower(partials.find, written)
    return Forms(
        value,
        first_order(value, slopes),
        composite,
        _recorded(tower, composite),
        len(names),
        (found,),
        gradients=_gradients(slopes, curvatures),
        derivatives=derivatives,
    )


def _gradients(
    slopes: Sequence[Callable[..., Tensor]], curvatures: Mapping[tuple[int, int], Callable[..., Tensor]]
) -> tuple[Callable[..., list[Tensor]], Callable[..., list[Tensor]]]:
    n = range(len(slopes))
    differentiable = [first_order(slopes[i], [curvatures[min(i, j), max(i, j)] for j in n]) for i in n]
    return gradients(slopes), gradients(differentiable)


def _recorded(tower: DerivativeTower, composite: CompositeForms) -> Callable[..., Tensor]:
    def recorded(*tensors: Tensor) -> Tensor:
        if dispatch.in_dynamo():
            return composite.made[2](*tensors)
        return tower(*tensors) if dispatch.world() is World.EAGER else composite.of(MAX_ORDER)(*tensors)

    return recorded


_REACH = (2.0, 40.0)
"""Range of sample points: the ordinary ones, and those of the tails."""
_PART = 0.9
"""Share of the points at which a form has to agree: where a formula cancels, it is wrong in float64 too.

Cancellation multiplies the rounding errors of both widths alike. Where float32 and float64 agree to 10⁻³, it multiplies
2⁻²⁴ by at most 10⁻³ · 2²⁴, to first order. So float64 is right to about 10⁻³ · 2⁻²⁹ = 2·10⁻¹² there, which is far below
the difference that is allowed, 10⁻⁶ and 16 eps.
"""


def _require_sound(found: Certificate, dtype: torch.dtype, made: dict[certificate.By, Callable[..., Tensor]]) -> None:
    """Refuse a certificate whose forms do not compute its formula, where float64 and float32 agree on that."""
    random = torch.Generator("cpu").manual_seed(0)
    formula = parse(found.formula, found.variables)
    for reach in _REACH:
        draws = [torch.rand(128, generator=random, dtype=torch.float64, device="cpu") for _ in found.variables]
        at = [((u * 2 - 1) * reach).to(dtype) for u in draws]
        wide, narrow = ({n: x.to(d) for n, x in zip(found.variables, at, strict=True)} for d in _WIDTHS)
        for by, form in made.items():
            target = formula
            for name in by:
                target = derivative(target, name)
            right, rough, got = evaluate(target, wide), evaluate(target, narrow).double(), form(*at).double()
            size = right.abs().clamp_min(1e-3)
            settled = right.isfinite() & (size < torch.finfo(dtype).max) & ((rough - right).abs() < 1e-3 * size)
            close = ((got - right).abs() <= size * (16 * torch.finfo(dtype).eps + 1e-6))[settled]
            if close.numel() and not bool(close.double().mean() >= _PART):
                raise FormulaError(f"the form of {certificate.label(by)} of {found.name} does not compute it")


@dataclass(frozen=True, slots=True)
class Hole:
    """A point at which a formula is 0/0, and the limits of its value and its derivatives there."""

    at: float
    limits: tuple[float, ...]


def forms_of_filled_holes(
    formula: Callable[..., Tensor], meaning: Meaning, dtype: torch.dtype, written: Callable[..., Tensor]
) -> Forms | None:
    """Forms of a formula whose holes are filled; `None` if it has none with limits of all orders.

    `written` is the formula, for derivatives beyond the first.
    """
    whole = Formula(formula)
    if len(whole.variables) > 1:  # the value depends on one of them alone
        return None
    locations = unfilled_holes(whole, removable_holes(meaning.term, dtype), dtype)
    if not locations:
        return None
    (name,) = meaning.variables
    terms = _derivatives(meaning.term, name)
    found = [hole for at in locations if (hole := _hole(terms, name, at, dtype)) is not None]
    away = _regular_point(terms, name, dtype)
    if not found or away is None:
        return None

    def filled(function: Callable[..., Tensor], order: int) -> Function:
        return _with_taylor_at_holes(function, found, away, order)

    return Forms(
        value=_with_limits_at_holes(formula, found),
        first=filled(formula, 1),
        composite=CompositeForms(lambda order: filled(written, order)),
        recorded=filled(written, MAX_ORDER),
        arity=1,
        rules=tuple(f"the limit at {hole.at:g}" for hole in found),
    )


def _derivatives(term: Term, name: str) -> list[Term]:
    """A term and its derivatives, as far as composite forms carry them; empty if one of them has no term."""
    terms = [term]
    try:
        while len(terms) <= MAX_ORDER:
            terms.append(tidy(derivative(terms[-1], name)))
    except DerivativeError:
        return []
    return terms


def _hole(terms: Sequence[Term], name: str, at: float, dtype: torch.dtype) -> Hole | None:
    limits = tuple(value for term in terms if (value := mpmath_limit(term, name, at)) is not None)
    fits = len(limits) == len(terms) > 0 and bool(torch.tensor(limits, dtype=dtype).isfinite().all())
    return Hole(at, limits) if fits else None


_AWAY = (1.0, -1.0, 0.5, 2.0, 3.0, -3.0)


def _regular_point(terms: Sequence[Term], name: str, dtype: torch.dtype) -> float | None:
    """A number at which terms are finite, in place of the inputs at holes: its slopes are multiplied by zeros there."""
    at = torch.tensor(_AWAY, dtype=dtype)
    known = [evaluate(term, {name: at}).isfinite() for term in terms]
    finite = [x for i, x in enumerate(_AWAY) if all(k[i] for k in known)]
    return finite[0] if finite else None


def _with_limits_at_holes(formula: Function, holes: Sequence[Hole]) -> Function:
    def function(x: Tensor) -> Tensor:
        out = formula(x)
        for hole in holes:
            out = torch.where(x == hole.at, hole.limits[0], out)
        return out

    return function


def _with_taylor_at_holes(formula: Function, holes: Sequence[Hole], away: float, order: int) -> Function:
    """Formula with the derivatives up to an order at its holes, and NaN for those beyond."""

    def function(x: Tensor) -> Tensor:
        at_any = reduce(torch.logical_or, [x == hole.at for hole in holes])
        out = formula(torch.where(at_any, away, x))
        for hole in holes:
            here = x == hole.at
            d = torch.where(here, x - hole.at, 1.0)
            series = _series(hole.limits[: order + 1], d)
            if order > 1:  # the first order alone is for graphs that are differentiated once
                series = series + nan_from(order + 1, d)
            out = torch.where(here, series, out)
        return out

    return function


def _series(limits: Sequence[float], d: Tensor) -> Tensor:
    """Taylor polynomial of some derivatives, by Horner's rule."""
    coefficients = [value / factorial(n) for n, value in enumerate(limits)]
    series = d * coefficients[-1] + coefficients[-2]
    for coefficient in reversed(coefficients[:-2]):
        series = series * d + coefficient
    return series
