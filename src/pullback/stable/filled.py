"""A formula with its removable holes filled: at a point where it is 0/0, the limits of its value and derivatives.

Everywhere else it is the formula as written, to the bit. At a hole c it is the Taylor polynomial about c, whose
coefficients are limits; d = x − c is 0 there, so that only its derivatives matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import factorial

import torch
from torch import Tensor

from pullback.errors import DerivativeError
from pullback.stable.derive import derivative
from pullback.stable.evaluate import evaluate
from pullback.stable.forms import Forms
from pullback.stable.formula import Formula
from pullback.stable.holes import holes
from pullback.stable.jet import Function, nan_from
from pullback.stable.meant import Meaning
from pullback.stable.orders import MOST, Native
from pullback.stable.quick import left_open
from pullback.stable.quick_dispute import limit
from pullback.stable.term import Term
from pullback.stable.tidy import tidy


@dataclass(frozen=True, slots=True)
class Hole:
    """A point at which a formula is 0/0, and the limits of its value and its derivatives there."""

    at: float
    limits: tuple[float, ...]


def forms_with_holes_filled(
    formula: Callable[..., Tensor], meaning: Meaning, dtype: torch.dtype, written: Callable[..., Tensor]
) -> Forms | None:
    """Return the forms of a formula whose holes are filled; `None` if it has none with limits of all orders.

    `written` is the formula, for derivatives beyond the first.
    """
    whole = Formula(formula)
    if len(whole.variables) > 1:  # the value depends on one of them alone
        return None
    places = left_open(whole, holes(meaning.term, dtype), dtype)
    if not places:
        return None
    (name,) = meaning.variables
    terms = _derivatives(meaning.term, name)
    found = [hole for at in places if (hole := _hole(terms, name, at, dtype)) is not None]
    away = _away(terms, name, dtype)
    if not found or away is None:
        return None

    def filled(function: Callable[..., Tensor], order: int) -> Function:
        return _filled(function, found, away, order)

    return Forms(
        value=_filled_value(formula, found),
        first=filled(formula, 1),
        native=Native(lambda order: filled(written, order)),
        recorded=filled(written, MOST),
        arity=1,
        rules=tuple(f"the limit at {hole.at:g}" for hole in found),
    )


def _derivatives(term: Term, name: str) -> list[Term]:
    """Return a term and its derivatives, as far as native forms carry them; none if there is one that has no term."""
    terms = [term]
    try:
        while len(terms) <= MOST:
            terms.append(tidy(derivative(terms[-1], name)))
    except DerivativeError:
        return []
    return terms


def _hole(terms: Sequence[Term], name: str, at: float, dtype: torch.dtype) -> Hole | None:
    limits = tuple(value for term in terms if (value := limit(term, name, at)) is not None)
    fits = len(limits) == len(terms) > 0 and bool(torch.tensor(limits, dtype=dtype).isfinite().all())
    return Hole(at, limits) if fits else None


_AWAY = (1.0, -1.0, 0.5, 2.0, 3.0, -3.0)


def _away(terms: Sequence[Term], name: str, dtype: torch.dtype) -> float | None:
    """Return a number at which terms are finite: its slopes are multiplied by the zeros that go past a hole."""
    at = torch.tensor(_AWAY, dtype=dtype)
    known = [evaluate(term, {name: at}).isfinite() for term in terms]
    finite = [x for i, x in enumerate(_AWAY) if all(k[i] for k in known)]
    return finite[0] if finite else None


def _filled_value(formula: Function, holes: Sequence[Hole]) -> Function:
    def function(x: Tensor) -> Tensor:
        out = formula(x)
        for hole in holes:
            out = torch.where(x == hole.at, hole.limits[0], out)
        return out

    return function


def _filled(formula: Function, holes: Sequence[Hole], away: float, order: int) -> Function:
    """Return a formula with the derivatives up to an order at its holes, and NaN for those beyond."""

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
    """Return the Taylor polynomial of some derivatives, by Horner's rule."""
    coefficients = [value / factorial(n) for n, value in enumerate(limits)]
    series = d * coefficients[-1] + coefficients[-2]
    for coefficient in reversed(coefficients[:-2]):
        series = series * d + coefficient
    return series
