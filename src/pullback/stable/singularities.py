"""Roots, poles and removable holes of terms: errors are largest there, and samples miss them.

Roots and poles of odd order change the sign between two samples, those of even order are a dip or a peak; `_narrowed`
bisects towards them. Holes show in no sample, so they are found from the subterms at whose zeros an op is singular:
denominators, arguments of logarithms and square roots, bases of powers.

A literal that was computed and rounded to float64 moves a hole: (eˣ − c)/(x + 4) has one at −4 if c is e⁻⁴. With c
rounded it has a pole there, and the second derivative is off by 10⁻³ at the next float32 number. Such a literal differs
from what the author intended (`moved_hole`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cache

import numpy as np
import torch

from pullback.ops.registry import OPS
from pullback.stable import trial
from pullback.stable.evaluate import evaluate, evaluate_all
from pullback.stable.formats import Floats, Ordinals, format_of
from pullback.stable.oracle.values import exact
from pullback.stable.sampling import Domain, TargetSamples, samples_at
from pullback.stable.term import CONST, Term, const, parse, substitute, topological, var, variables
from pullback.stable.trial import mpmath_limit


def singular_subterms(roots: Iterable[Term]) -> list[Term]:
    """Subterms of some terms at whose zeros an op is singular, without variables and constants alone."""
    found: dict[Term, None] = {}
    for term in topological(roots):
        for operand in _singular_operands(term):
            found.update(dict.fromkeys(f for f in _factors(operand) if f.args and variables(f)))
    return list(found)


def _singular_operands(term: Term) -> Iterator[Term]:
    for text in OPS[term.op].singular if term.op in OPS else ():
        yield substitute(_template(text), dict(zip(_NAMES, term.args, strict=False)))


_NAMES = tuple(map(var, "abc"))
_template = cache(parse)


def _factors(term: Term) -> Iterator[Term]:
    """Yield the factors of a product, whose own zeros may be even ones of the product: (x − 3)² changes no sign."""
    waiting = [term]
    while waiting:
        factor = waiting.pop()
        if factor.op == "mul":
            waiting += factor.args
        elif factor.op in ("neg", "abs", "pow", "sqrt", "rsqrt"):
            waiting.append(factor.args[0])
        elif factor.op == "div":
            waiting += factor.args
        else:
            yield factor


_MOST_POINTS = 12
"""Places of a kind, the nearest to 0: a periodic function has infinitely many."""
_GRID = np.linspace(-128.0, 128.0, 2049)
"""Further points of singular subterms besides the samples, which end at the ends of the domain."""
_GRID_PARTS, _GRID_ROUNDS = 16, 7
"""Parts of an interval in a round, and rounds.

A sample has every power of two, of float32 2²³ numbers apart, and a search keeps one in a few of its points. A change
of sign is found to the last number: its interval shrinks by 16⁷ = 2²⁸. That of a dip or peak keeps two parts in a round
and shrinks by 8⁷ = 2²¹, to a few dozen numbers.
"""
_ASIDE, _DEEP = 2**16, 8
"""Offset from a root or pole of even order, in steps, and by how many powers of two a term changes over it.

At a root of order k, |f| ≈ C hᵏ: from some 2⁵ steps away to 2¹⁶ it grows by 2^(11k), and k is at least 2.
"""


def critical_points(target: Term, name: str, known: TargetSamples, dtype: torch.dtype) -> list[float]:
    """Numbers next to roots and poles of a term of one variable, and next to zeros at which it is singular.

    Args:
        target: the term.
        name: its variable.
        known: samples of it; a zero between two samples with no sign in either is not found.
        dtype: dtype of the numbers.
    """
    x, value = known.points[name], known.exact
    with np.errstate(divide="ignore"):
        size = np.log2(np.abs(value)).clip(-2000, 2000)
    flips = np.flatnonzero(np.sign(value[:-1]) * np.sign(value[1:]) < 0)
    found = _narrowed(target, name, dtype, x[flips], x[flips + 1], "flip")
    for kind, height in (("dip", -size), ("peak", size)):
        before, after = height[1:-1] - height[:-2], height[1:-1] - height[2:]
        tops = 1 + np.flatnonzero((before > 0) & (after > 0) & (before + after > 0.5))
        found += _narrowed(target, name, dtype, x[tops - 1], x[tops + 1], kind)
    return list(dict.fromkeys([*found, *singular_points(target, name, known, dtype)]))


def singular_points(target: Term, name: str, known: TargetSamples, dtype: torch.dtype) -> list[float]:
    """Numbers next to the zeros of denominators, of arguments of logarithms and of roots.

    Poles, holes and ends of the domain lie there. Arguments as for `critical_points`.
    """
    x, found = np.union1d(known.points[name], _GRID), list[float]()
    at = {name: torch.from_numpy(x)}
    terms = singular_subterms([target])
    for term, value in zip(terms, evaluate_all(terms, at) if terms else (), strict=True):
        sign = np.sign(value.numpy())
        zeros = x[sign == 0]
        found += map(float, zeros[np.argsort(np.abs(zeros), kind="stable")][:_MOST_POINTS])
        flips = np.flatnonzero(sign[:-1] * sign[1:] < 0)
        found += _narrowed(term, name, dtype, x[flips], x[flips + 1], "flip")
    return list(dict.fromkeys(found))


def samples_around(
    target: Term, names: Sequence[str], locations: Sequence[float], dtype: torch.dtype, seed: int, domain: Domain
) -> TargetSamples:
    """Samples of a term of one variable around some points, at distances from one step of the format to a million."""
    form, random = format_of(dtype), np.random.default_rng(seed)
    steps = np.concatenate([np.arange(9), 2.0 ** np.arange(3, 21) * random.uniform(1, 2, 18)]).astype(np.int64)
    centers = form.ordinal(np.array(locations, dtype=np.float64))
    last = int(form.ordinal(np.array([form.largest]))[0])
    around = (centers[:, None] + np.concatenate([-steps, steps])).clip(-last, last)
    x = np.unique(form.at_ordinal(around.ravel()))
    low, high = domain.get(names[0], (-np.inf, np.inf))
    return samples_at(target, {names[0]: x[(x >= low) & (x <= high)]})


def _narrowed(target: Term, name: str, dtype: torch.dtype, low: Floats, high: Floats, kind: str) -> list[float]:
    """Positions in some intervals where the value changes its sign ("flip"), is least ("dip") or largest ("peak")."""
    form = format_of(dtype)
    nearest = np.argsort(np.minimum(np.abs(low), np.abs(high)), kind="stable")[:_MOST_POINTS]
    first, last = form.ordinal(low[nearest]), form.ordinal(high[nearest])
    rows = np.arange(len(nearest))

    def values(at: Ordinals) -> Floats:
        value: Floats = exact([target], {name: form.at_ordinal(at.ravel())})[0].high.reshape(at.shape)
        with np.errstate(divide="ignore"):
            made: Floats = (
                np.sign(value) if kind == "flip" else np.nan_to_num(np.log2(np.abs(value)), nan=0.0, posinf=2e3)
            )
        return made

    # Each round divides an interval into sixteen in the order of the format, and keeps the part with the change of
    # sign, or the two parts beside the extreme value: all intervals at once, since the oracle is fast on many points.
    for _ in range(_GRID_ROUNDS if len(rows) else 0):
        grid = first[:, None] + (last - first)[:, None] * np.arange(_GRID_PARTS + 1) // _GRID_PARTS
        value = values(grid)
        if kind == "flip":
            place = np.argmax(value != value[:, :1], axis=1)
            ends = np.maximum(place - 1, 0), place
        else:
            place = np.argmin(value, axis=1) if kind == "dip" else np.argmax(value, axis=1)
            ends = np.maximum(place - 1, 0), np.minimum(place + 1, _GRID_PARTS)
        first, last = (grid[rows, end] for end in ends)
    middle = (first + last) // 2
    if kind != "flip":  # a hollow in the curve is not a root
        before, there, after = values(np.stack([middle - _ASIDE, middle, middle + _ASIDE]))
        deep = np.minimum(np.abs(there - before), np.abs(there - after)) > _DEEP
        middle = middle[deep]
    return [float(x) for x in form.at_ordinal(middle)]


_LITERAL_DIGITS = 16
"""Significant digits of a literal that nobody types.

Float64 tells all decimals of 15 digits apart, so a typed one is written back as it was. A number whose shortest decimal
has 16 or 17 digits was computed.
"""
_MOVED = 2.0**-20
"""A relative change of the value that shows in float32."""


def moved_hole(target: Term, near: TargetSamples) -> tuple[Term, int] | None:
    """Literal whose rounding changes a term near its singular points, and the sample where it does most.

    Args:
        target: the term.
        near: samples of it around these points.
    """
    for literal in _literals(target):
        rounded = const(literal.value * (1 + Fraction(1, 2**53)))  # the largest relative error of rounding to float64
        (other,) = exact([substitute(target, {literal: rounded})], near.points)
        change = np.abs(other.high - near.exact)
        with np.errstate(invalid="ignore"):
            moved = np.where(np.isfinite(change) & (change > _MOVED * np.abs(near.exact)), change, 0.0)
        if moved.any():
            return literal, int(np.argmax(moved / np.maximum(np.abs(near.exact), np.finfo(float).tiny)))
    return None


def _literals(root: Term) -> Iterator[Term]:
    for term in topological([root]):
        text = repr(float(term.value)) if term.op == CONST else ""
        digits = text.partition("e")[0].replace(".", "").strip("-0")
        if len(digits) >= _LITERAL_DIGITS and term.value == Fraction(text):
            yield term


_USUAL = {torch.float64: torch.float32}
"""Roots are not found to the last bit of float64; those that people write are numbers of fewer bits."""
_MOST_HOLES = 4
"""Holes that are looked at, the nearest to 0."""


def removable_holes(root: Term, dtype: torch.dtype) -> list[float]:
    """Numbers of a dtype at which a term of one variable is 0/0 and has a limit; none for several variables."""
    names = variables(root)
    if len(names) != 1 or not any(t.op == "div" for t in topological([root])):
        return []
    zeros = np.unique(np.array(list(_denominator_zeros(root, names[0], dtype))))
    zeros = zeros[np.argsort(np.abs(zeros), kind="stable")][:_MOST_HOLES]
    if not len(zeros):
        return []
    unknown = evaluate(root, {names[0]: torch.from_numpy(zeros)}).isnan().numpy()
    return [float(x) for x in zeros[unknown] if mpmath_limit(root, names[0], float(x)) is not None]


def with_limits(term: Term, target: Term, name: str, locations: Sequence[float]) -> Term:
    """Term that has the limits of its exact meaning at some locations, where there are any."""
    for place in locations:
        value = mpmath_limit(target, name, place)
        if value is not None:
            term = Term("where", (Term("eq", (var(name), const(place))), const(value), term))
    return term


def _denominator_zeros(root: Term, name: str, dtype: torch.dtype) -> Iterator[float]:
    """Yield the zeros of denominators that are numbers of a dtype."""
    (points,) = trial.trial_points(1, dtype)
    yield 0.0
    for term in singular_subterms([root]):

        def value(at: trial.PointColumns, term: Term = term) -> Floats:
            found: Floats = evaluate(term, {name: torch.from_numpy(at[0])}).numpy()
            return found

        roots = trial.sign_changes(value, [points[:, 0]])[0]
        for form in map(format_of, dict.fromkeys((dtype, _USUAL.get(dtype, dtype)))):
            found = form.round(roots)
            yield from found[value([found]) == 0].tolist()
