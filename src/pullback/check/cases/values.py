"""From one working example to others that hold other values: zeros, ties, whole numbers, tiny and huge ones."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from types import MappingProxyType

import torch
from torch import Tensor

from pullback.check.case import Case, is_differentiable
from pullback.check.cases.sizes import resized
from pullback.check.cases.structure import are_distinct, is_fixed, is_permutation, is_structured, partitions
from pullback.check.cases.templates import DISTANCES, SMOOTH
from pullback.check.cases.words import Words
from pullback.dtypes import has_integers

TINY = "tiny values"
SPREAD = "values from -12 to 12"
ALL_EQUAL = "whole-number arguments all equal"
_DIM = re.compile(r"(^|_)(dim|axis)$")
_LARGE = 4.0
_DENSE = 48


def other_values(case: Case) -> Iterator[Case]:
    """Yield the case with other ordinary values: zeros, negatives, large, small, whole, tied, duplicate."""
    free = [p for p in case.wrt if not is_fixed(case.values[p])]
    for label, change in ORDINARY.items():
        if free:
            yield from _changed(case, free, label, change)
    yield from _spreads(case)
    if len(case.wrt) > 1:
        for position in free:
            zeroed = _half_zero(case.values[position])
            yield case.with_values({position: zeroed}, f"{case.names[position]} with exact zeros")
    yield from of_whole_numbers(case)


def of_whole_numbers(case: Case) -> Iterator[Case]:
    """Yield the case with other whole numbers among those that its tensors hold: one of them everywhere, reversed."""
    integers = {p: t for p, t in case.all_tensors.items() if has_integers(t) and t.numel()}
    if integers and not any(is_permutation(v) for v in integers.values()):
        equal = {p: v.flatten()[:1].repeat(v.numel()).view(v.shape) for p, v in integers.items()}
        doubtful = case.doubtful or any(map(are_distinct, integers.values()))  # a scatter may rely on it
        yield case.with_values(equal, ALL_EQUAL, doubtful=doubtful)
        flipped = {p: v.flip(0) if v.ndim else v for p, v in integers.items()}
        yield case.with_values(flipped, "whole-number arguments reversed")
    if (ignored := all_ignored(case)) is not None:
        yield ignored


def some_ignored(case: Case) -> Iterator[Case]:
    """Yield the case with every other whole number of a vector that which an argument names to be ignored.

    Not of lengths or offsets, which partition a tensor.
    """
    parting = {partition.whole for partition in partitions(case)}
    numbers = [v for v, name in zip(case.values, case.names, strict=True) if type(v) is int and _IGNORED.search(name)]
    for position, t in case.all_tensors.items():
        if position in parting:
            continue
        if numbers and has_integers(t) and t.dtype != torch.bool and t.ndim == 1 and numbers[0] not in t:
            some = t.clone()
            some[::2] = numbers[0]
            yield case.with_values({position: some}, f"every other element of {case.names[position]} {numbers[0]}")


_IGNORED = re.compile(r"ignore_?(index|idx|label|id)|pad(ding)?_?(index|idx|id|token)")
"""Matches names of the whole number that marks labels without a loss."""


def all_ignored(case: Case) -> Case | None:
    """Return the case with the negative number that marks ignored elements everywhere; `None` if there is none.

    That is in tensors of whole numbers which hold others, too, as labels do.
    """
    tensors = {p: t for p, t in case.all_tensors.items() if has_integers(t) and t.dtype != torch.bool}
    marked = {p: int(t.min()) for p, t in tensors.items() if t.numel() and int(t.min()) < 0 <= int(t.max())}
    if not marked:
        return None
    label = f"whole-number arguments all {', '.join(map(str, dict.fromkeys(marked.values())))}"
    return case.with_values({p: torch.full_like(tensors[p], n) for p, n in marked.items()}, label)


_SWITCHED_ON = 0.1
"""Replaces a float argument that is 0, the usual default of a smoothing or a penalty."""


_FIRST = re.compile(r"start|begin|offset|shift|skip")
"""Matches names of whole numbers that count from 0: where a range begins."""


_WINDOW, _WINDOW_OF = re.compile(r"window"), 3
"""Matches names of the width of a window, which is none where it is 0, and a width."""


_OF_GRAD_MODE = re.compile(r"grad_enabled|enable_grad|no_grad")
"""Matches the name of a flag that tells a forward whether gradients are recorded."""


def other_numbers(case: Case, words: Words = MappingProxyType({})) -> Iterator[Case]:
    """Yield the case with one non-tensor argument changed: a float nearer to 0 or 1, or no longer 0, a flag, a dim.

    Words and floats that the source compares an argument with are tried, too.

    With an argument at its default, errors of the backward for other values do not show.

    Args:
        case: the call.
        words: what the source compares arguments with, by their names.
    """
    dims = {t.ndim for t in case.all_tensors.values()}
    for position, value in enumerate(case.values):
        name = case.names[position]
        known = words.get(name.rpartition(".")[2].lower(), ())
        if isinstance(value, bool):
            if _OF_GRAD_MODE.search(name):  # which no gradient follows where it is off
                continue
            doubtful = case.doubtful or (not value and any(map(_may_stand_in, case.values)))
            yield case.with_values({position: not value}, f"{name} = {not value}", doubtful=doubtful)
        elif isinstance(value, str) or value is None:
            for word in known:
                if isinstance(word, str) and word != value:
                    yield case.with_values({position: word}, f"{name} = {word!r}")
        elif isinstance(value, float) and math.isfinite(value):
            for number in known:
                if isinstance(number, float) and number != value:
                    yield case.with_values({position: number}, f"{name} = {number:g}")
            other = (1 + value) / 2 if value > 1 else value / 2 or _SWITCHED_ON  # it may have to exceed 1
            yield case.with_values({position: other}, f"{name} = {other:g}")
        elif isinstance(value, int) and _DIM.search(name) and max(dims, default=0) > 1:
            dim = 0 if value % max(dims) else 1
            halved = (t for t in case.all_tensors.values() if t.ndim == max(dims) and t.shape[value % t.ndim] % 2 == 0)
            doubtful = case.doubtful or any(t.shape[dim] % 2 for t in halved)  # the forward may take halves of it
            yield case.with_values({position: dim}, f"{name} = {dim}", doubtful=doubtful)
        elif isinstance(value, int) and value == 0 and (first := _FIRST.search(name) or _WINDOW.search(name)):
            other = 1 if first.re is _FIRST else _WINDOW_OF
            yield case.with_values({position: other}, f"{name} = {other}")


def switched(case: Case, words: Words = MappingProxyType({})) -> Iterator[Case]:
    """Yield those of the calls with another number in which a flag or a word is another one."""
    for other in other_numbers(case, words):
        pairs = zip(case.values, other.values, strict=True)
        if any(isinstance(value, bool | str) and value != new for value, new in pairs):
            yield other


def _may_stand_in(value: object) -> bool:
    """Whether an argument is one whole number in a tensor: it may stand in for indices that only a flag asks for."""
    return isinstance(value, Tensor) and value.shape == (1,) and has_integers(value)


def _changed(case: Case, free: list[int], label: str, change: Callable[[Tensor], Tensor]) -> Iterator[Case]:
    """Yield the case with the free tensors changed; to a constant first without those that may be parameters.

    A tensor smaller than the others may be a parameter with a restricted domain, such as alpha != 1, which a forward
    seldom checks: a failure only where these are all 0 or all 1 is reported with that remark.
    """
    doubtful = case.doubtful
    if label in CONSTANTS:
        largest = max(case.values[p].numel() for p in free)
        data = [p for p in free if case.values[p].numel() == largest]
        if len(data) < len(free):
            names = ", ".join(case.names[p] for p in data)
            yield case.with_values({p: change(case.values[p]) for p in data}, f"{label} in {names}")
            doubtful = True
    yield case.with_values({p: change(case.values[p]) for p in free}, label, doubtful=doubtful)


def crosses(before: Case, after: Case) -> bool:
    """Whether a variant swaps a lower and an upper limit of the call, as their names tell."""
    positions = {name.rpartition(".")[2]: p for p, name in enumerate(before.names)}
    pairs = [(positions[low], positions[high]) for low, high in _limits(positions) if high in positions]
    return any(_is_below(before, *pair) and not _is_below(after, *pair) for pair in pairs)


_LIMITS = (("min", "max"), ("low", "high"), ("lower", "upper"), ("lo", "hi"), ("left", "right"))


def _limits(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        for low, high in _LIMITS:
            if re.search(rf"(^|_){low}(_|$)", name):
                yield name, re.sub(rf"(^|_){low}(?=_|$)", rf"\1{high}", name)


def _is_below(case: Case, low: int, high: int) -> bool:
    """Whether all of a lower limit is below the upper one, or they cannot be compared."""
    first, second = case.values[low], case.values[high]
    if not isinstance(first, Tensor | float | int) or not isinstance(second, Tensor | float | int):
        return True
    try:
        return bool(torch.as_tensor(first < second).all())
    except RuntimeError:  # complex, or of other shapes
        return True


def extremes(case: Case) -> Iterator[Case]:
    """Yield the case with values at the ends of the range: tiny, huge."""
    if any(is_structured(t) for t in case.tensors):
        return
    for label, factor in ((TINY, 1e-12), ("huge values", 1e6)):
        yield case.map_inputs(lambda t, by=factor: t * by, label, extreme=True)  # type: ignore[misc]


def _spreads(case: Case) -> Iterator[Case]:
    """Yield the case with values from -12 to 12, dense enough to meet a bound that is a whole number off."""
    free = [p for p in case.wrt if not is_fixed(case.values[p]) and not case.values[p].is_complex()]
    sizes = [s for p in free for s in case.values[p].shape]
    indices = any(isinstance(v, Tensor) and not is_differentiable(v) and v.dtype != torch.bool for v in case.values)
    if not free or any(is_fixed(t) for t in case.tensors):
        return
    widest = max(case.values[p].numel() for p in free)
    largest = max(sizes, default=1)
    enlarged = (
        resized(case, {largest: largest * -(-_DENSE // widest)})
        if 0 < widest < _DENSE and sizes and not indices and largest not in case.fixed
        else case
    )
    for part in range(3):
        spread = {p: _spread(enlarged.values[p], part / 3) for p in free}
        yield enlarged.with_values(spread, f"{SPREAD}, part {part + 1}")


def _spread(t: Tensor, offset: float) -> Tensor:
    """Return values evenly spread over [-12, 12], shifted by a part of their spacing, in shuffled order."""
    if not t.numel():
        return t
    # 48 values are 0.51 apart. The three parts are a third of that apart: together they are 0.17 dense.
    even = torch.linspace(-12, 12, t.numel(), dtype=torch.float64)
    order = torch.randperm(t.numel(), generator=torch.Generator().manual_seed(1))
    return (even + offset * 24 / t.numel())[order].reshape(t.shape).to(t.dtype)


def shared(case: Case, apart: Collection[int] = ()) -> Iterator[Case]:
    """Yield the case with one tensor passed as two arguments, for each pair of one shape, except those at `apart`."""
    free = [p for p in case.wrt if p not in apart]
    for order, first in enumerate(free):
        for second in free[order + 1 :]:
            a, b = case.values[first], case.values[second]
            if a.shape == b.shape and a.dtype == b.dtype:
                yield case.with_values({second: a}, f"{case.names[second]} the same tensor as {case.names[first]}")


def other_callables(case: Case) -> Iterator[Case]:
    """Yield the case with distance functions in place of the substitutes for the function's own callables."""
    positions = [p for p, v in enumerate(case.values) if v is SMOOTH]
    for other in DISTANCES if positions else ():
        yield case.with_values(dict.fromkeys(positions, other))


def positive(case: Case) -> Iterator[Case]:
    """Yield the case with positive numbers."""
    yield case.map_inputs(_positive, case.label, required_property="positive numbers")


def with_numbers(case: Case, held: Collection[int]) -> Iterator[Case]:
    """Yield the case with a number in place of each differentiated tensor, except held ones."""
    for position in case.wrt:
        if position not in held:
            rest = tuple(p for p in case.wrt if p != position)
            yield case.with_values(
                {position: _NUMBER}, wrt=rest, required_property=f"{case.names[position]} = {_NUMBER}"
            )


_NUMBER = 0.5


def _half_zero(t: Tensor) -> Tensor:
    keep = torch.arange(t.numel()).reshape(t.shape) % 2 == 1
    return t * keep


def _tied(t: Tensor) -> Tensor:
    return t.flatten()[0].expand(t.shape).clone() if t.numel() else t


def _positive(t: Tensor) -> Tensor:
    return t if t.is_complex() else t.abs() + 0.125


CONSTANTS = ("all zeros", "all ones")
"""The changes after which all elements are equal."""
ORDINARY: dict[str, Callable[[Tensor], Tensor]] = {
    "exact zeros": _half_zero,
    "all zeros": torch.zeros_like,
    "all ones": torch.ones_like,
    "negated numbers": lambda t: -t,
    "positive numbers": _positive,
    "negative numbers": lambda t: -_positive(t),
    "larger numbers": lambda t: t * _LARGE,
    "smaller numbers": lambda t: t / 16,
    "whole numbers": lambda t: t if t.is_complex() else (2 * t).round(),
    "all equal": _tied,
}
"""Changes to other ordinary values, by their labels."""
