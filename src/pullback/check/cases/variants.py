"""From one working example to many: sizes, values, layouts, dtypes, shared tensors, broadcasting.

A variant is only a proposal: one that the forward refuses is no valid input and is dropped by whoever runs
it. Sizes are changed together: every dimension that has size 5 in the example is taken to be the same
dimension, so that matrices still fit each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pullback.check.case import Case, is_differentiable
from pullback.check.cases.callables import DISTANCES, SMOOTH

PRIMES = (2, 7, 11)
_NO_SIZE = re.compile(r"dim|axis|axes|iter|steps")
_LARGE = 4.0
_DENSE = 48


def sizes(case: Case) -> Iterator[Case]:
    """Yield the case with sizes 1, 0 and prime, and with single inputs of smaller, broadcastable shapes."""
    yield from uniform_sizes(case)
    yield from broadcasts(case)


def is_structured(t: Tensor) -> bool:
    """Whether a tensor holds what changing its elements one by one would break.

    Only zeros and ones, a symmetric or a triangular matrix, rows of length 1 or of sum 1: a forward may rely
    on that without checking it, and its value elsewhere means nothing.
    """
    if t.ndim < 1 or t.numel() < 2 or t.shape[-1] < 2:
        return False
    if bool(((t == 0) | (t == 1)).all()) and bool((t == 0).any() & (t == 1).any()):
        return True
    if t.ndim >= 2 and t.shape[-1] == t.shape[-2]:
        upper, lower = t.triu(1), t.tril(-1)
        if torch.allclose(t, t.mH) or not bool(upper.any()) or not bool(lower.any()):
            return True
    sums, lengths = t.sum(-1), t.abs().square().sum(-1)
    one = torch.ones_like(sums)
    return torch.allclose(sums, one) or torch.allclose(lengths, one.real.to(lengths.dtype))


def structured(case: Case) -> Iterator[Case]:
    """Yield the case with its square matrices made positive definite, lower triangular, symmetric."""
    square = [p for p in case.wrt if case.values[p].ndim >= 2 and case.values[p].shape[-1] == case.values[p].shape[-2]]
    makers: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
        ("positive definite matrices", lambda t: t @ t.mH / t.shape[-1] + torch.eye(t.shape[-1], dtype=t.dtype)),
        ("lower triangular matrices", lambda t: t.tril(-1) + torch.diag_embed(t.diagonal(0, -2, -1).abs() + 0.5)),
        ("symmetric matrices", lambda t: (t + t.mH) / 2),
    )
    for label, make in makers if square else ():
        yield case.with_values({p: make(case.values[p]) for p in square}, label)


def other_callables(case: Case) -> Iterator[Case]:
    """Yield the case with distances in place of the callables that stand for the function's own."""
    positions = [p for p, v in enumerate(case.values) if v is SMOOTH]
    for other in DISTANCES if positions else ():
        yield case.with_values(dict.fromkeys(positions, other))


def uniform_sizes(case: Case) -> Iterator[Case]:
    """Yield the case with each size class set to 1, to 0 and to a prime, and all of them to 1 or 0."""
    present = sorted({s for v in case.values if isinstance(v, Tensor) for s in v.shape if s > 0})
    for size in present:
        fixed = any(size in v.shape and is_structured(v) for v in case.tensors)
        for new in (1, 0, *PRIMES):
            if new != size and not (fixed and new > size):
                yield resized(case, {size: new})
    if len(present) > 1:
        for new in (1, 0):
            yield resized(case, dict.fromkeys(present, new))


def broadcasts(case: Case) -> Iterator[Case]:
    """Yield the case with one input of a shape that broadcasts to its own, where there are several tensors.

    A forward that takes them need not mean to: what fails here is told with that in mind.
    """
    if sum(isinstance(v, Tensor) for v in case.values) < 2:
        return
    for position in case.wrt:
        t = case.values[position]
        for dim in range(t.ndim):
            if t.shape[dim] > 1:
                one = t.narrow(dim, 0, 1)
                yield case.with_values(
                    {position: one}, f"{case.names[position]} with size 1 in dim {dim}", doubtful=True
                )
        if t.ndim:
            first = t.reshape(-1)[:1].reshape(()) if t.numel() else t.new_zeros(())
            yield case.with_values({position: first}, f"{case.names[position]} with no dimension", doubtful=True)
            if t.ndim > 1 and t.shape[0]:
                yield case.with_values(
                    {position: t[0]}, f"{case.names[position]} without its first dimension", doubtful=True
                )


def resized(case: Case, change: dict[int, int]) -> Case:
    """Return the case with every dimension of a size in `change` given its new size, values repeated.

    A whole-number argument equal to that size is taken to be that size, and goes with it.
    """
    label = ", ".join(f"size {old} -> {new}" for old, new in change.items())
    follows = {
        p: change[v]
        for p, v in enumerate(case.values)
        if type(v) is int and v > 1 and v in change and not _NO_SIZE.search(case.names[p])
    }
    case = case.with_values(follows)
    counts = [v for p, v in enumerate(case.values) if type(v) is int and abs(v) > 1 and p not in follows]
    whole = [v for v in case.values if isinstance(v, Tensor) and not is_differentiable(v)]
    fits = (
        0 not in follows.values()
        and all(abs(c) < min(change.values()) for c in counts)
        and not any(_is_permutation(v) for v in whole)
    )
    return case.map_tensors(lambda t: _resize(t, change), label, doubtful=case.doubtful or not fits)


def _resize(t: Tensor, change: dict[int, int]) -> Tensor:
    original = t.shape
    grown = any(new > size for size, new in change.items() if size in original)
    for dim, size in enumerate(original):
        new = change.get(size, size)
        if new != size:
            t = t.index_select(dim, torch.arange(new) % size)
    if not (t.is_floating_point() or t.is_complex()):
        return _fit_indices(t, change)
    if not grown or not t.numel():
        return t
    # Repeated rows would make matrices singular: shuffle the elements, and set them slightly apart.
    shuffled = t.flatten()[torch.randperm(t.numel(), generator=torch.Generator().manual_seed(0))]
    apart = 1 + torch.arange(t.numel()) % 13 / 64
    return (shuffled * apart).reshape(t.shape).to(t.dtype)


def _fit_indices(t: Tensor, change: dict[int, int]) -> Tensor:
    """Keep integers that may index a dimension inside it after that dimension has shrunk."""
    if t.dtype == torch.bool or not t.numel():
        return t
    limit = min((new for old, new in change.items() if new < old and int(t.max()) < old), default=0)
    return t.remainder(limit) if limit > 0 else t


def values(case: Case) -> Iterator[Case]:
    """Yield the case with other ordinary values: zeros, negatives, large, small, whole, tied, duplicate."""
    free = [p for p in case.wrt if not is_structured(case.values[p])]
    for label, change in _ORDINARY.items():
        if free:
            yield from _changed(case, free, label, change)
    yield from _spreads(case)
    if len(case.wrt) > 1:
        for position in free:
            zeroed = _half_zero(case.values[position])
            yield case.with_values({position: zeroed}, f"{case.names[position]} with exact zeros")
    integers = {
        p: v
        for p, v in enumerate(case.values)
        if isinstance(v, Tensor) and not (v.is_floating_point() or v.is_complex()) and v.numel()
    }
    if integers and not any(_is_permutation(v) for v in integers.values()):
        same = {p: v.flatten()[:1].expand(v.shape).clone() for p, v in integers.items()}
        yield case.with_values(same, "whole-number arguments all equal")
        flipped = {p: v.flip(0) if v.ndim else v for p, v in integers.items()}
        yield case.with_values(flipped, "whole-number arguments reversed")


def _changed(case: Case, free: list[int], label: str, change: Callable[[Tensor], Tensor]) -> Iterator[Case]:
    """Yield the case with the free tensors changed; to a constant first without those that may be parameters.

    A tensor smaller than the others may be a parameter with a domain of its own, such as alpha != 1, which a
    forward seldom tests: what fails only where these are all 0 or all 1 is told with that in mind.
    """
    doubtful = case.doubtful
    if label in _CONSTANTS:
        largest = max(case.values[p].numel() for p in free)
        data = [p for p in free if case.values[p].numel() == largest]
        if len(data) < len(free):
            names = ", ".join(case.names[p] for p in data)
            yield case.with_values({p: change(case.values[p]) for p in data}, f"{label} in {names}")
            doubtful = True
    yield case.with_values({p: change(case.values[p]) for p in free}, label, doubtful=doubtful)


def extremes(case: Case) -> Iterator[Case]:
    """Yield the case with values at the ends of the range: tiny, huge."""
    if any(is_structured(t) for t in case.tensors):
        return
    for label, factor in (("tiny values", 1e-12), ("huge values", 1e6)):
        yield case.map_inputs(lambda t, by=factor: t * by, label, extreme=True)  # type: ignore[misc]


def layouts(case: Case) -> Iterator[Case]:
    """Yield the case with the same values in other strides: transposed, sliced, offset, channels-last."""
    for label, (change, applies) in _LAYOUTS.items():
        if any(applies(case.values[p]) for p in case.wrt):
            yield case.map_inputs(
                lambda t, f=change, ok=applies: f(t) if ok(t) else t,  # type: ignore[misc]
                label,
                layout_only=True,
            )
    shaped = [p for p in case.wrt if case.values[p].ndim and case.values[p].shape[0] > 1]
    expandable = [p for p in shaped if not is_structured(case.values[p])]
    for position in expandable:
        t = case.values[position]
        yield case.with_values({position: t[:1].expand_as(t)}, f"{case.names[position]} expanded", layout_only=True)


def dtypes(case: Case) -> Iterator[Case]:
    """Yield the case in the other floating (or complex) dtypes, values rounded to what they can hold."""
    for real, compl in (
        (torch.float32, torch.complex64),
        (torch.bfloat16, None),
        (torch.float16, None),
        (torch.float64, torch.complex128),
    ):
        if any(case.values[p].is_complex() for p in case.wrt) and compl is None:
            continue
        changed = {
            p: v.to(compl if v.is_complex() else real)
            for p, v in enumerate(case.values)
            if isinstance(v, Tensor) and (v.is_floating_point() or v.is_complex())
        }
        if any(changed[p].dtype != case.values[p].dtype for p in case.wrt):
            yield case.with_values(changed, str(real).removeprefix("torch."))


def as_dtypes_of(case: Case, other: Case) -> Case:
    """Return the floating and complex values of `case` in the dtypes of `other`, an example of the same call."""
    if len(case.values) != len(other.values):
        return case
    return case.with_values(
        {
            p: v.to(like.dtype)
            for p, (v, like) in enumerate(zip(case.values, other.values, strict=True))
            if is_differentiable(v) and is_differentiable(like) and v.is_complex() == like.is_complex()
        }
    )


def widened(case: Case) -> Case:
    """Return the case with its floating tensors in float64 and its complex ones in complex128."""
    wide = {
        p: v.to(torch.complex128 if v.is_complex() else torch.float64)
        for p, v in enumerate(case.values)
        if isinstance(v, Tensor) and (v.is_floating_point() or v.is_complex())
    }
    return case.with_values({p: v for p, v in wide.items() if v.dtype != case.values[p].dtype})


def made_complex(case: Case) -> Case:
    """Return the case with complex values in place of the real differentiated ones."""
    return case.map_inputs(
        lambda t: torch.complex(t, (t + 0.7).sin()) if t.is_floating_point() else t, "complex values"
    )


def contiguous(case: Case) -> Case:
    """Return the same values in contiguous tensors."""
    return case.map_inputs(lambda t: t.clone(memory_format=torch.contiguous_format), case.label, layout_only=False)


def _is_permutation(t: Tensor) -> bool:
    """Whether each row or column holds every index once: an inverse of it may be among the arguments."""
    if not t.ndim or t.numel() < 2 or t.dtype == torch.bool:
        return False
    for dim in range(t.ndim):
        indices = torch.arange(t.shape[dim], dtype=t.dtype).reshape(-1, *(1 for _ in t.shape[dim + 1 :]))
        if t.shape[dim] > 1 and torch.equal(t.sort(dim).values, indices.expand_as(t)):
            return True
    return False


def _half_zero(t: Tensor) -> Tensor:
    keep = torch.arange(t.numel()).reshape(t.shape) % 2 == 1
    return t * keep


def _tied(t: Tensor) -> Tensor:
    return t.flatten()[0].expand(t.shape).clone() if t.numel() else t


def _positive(t: Tensor) -> Tensor:
    return t if t.is_complex() else t.abs() + 0.125


def _spreads(case: Case) -> Iterator[Case]:
    """Yield the case with values from -12 to 12, dense enough to meet a bound that is a whole number off."""
    free = [p for p in case.wrt if not is_structured(case.values[p]) and not case.values[p].is_complex()]
    sizes = [s for p in free for s in case.values[p].shape]
    indices = any(isinstance(v, Tensor) and not is_differentiable(v) and v.dtype != torch.bool for v in case.values)
    if not free or any(is_structured(t) for t in case.tensors):
        return
    widest = max(case.values[p].numel() for p in free)
    largest = max(sizes, default=1)
    enlarged = (
        resized(case, {largest: largest * -(-_DENSE // widest)})
        if 0 < widest < _DENSE and sizes and not indices
        else case
    )
    for part in range(3):
        spread = {p: _spread(enlarged.values[p], part / 3) for p in free}
        yield enlarged.with_values(spread, f"values from -12 to 12, part {part + 1}")


def _spread(t: Tensor, offset: float) -> Tensor:
    """Return values evenly spread over [-12, 12], shifted by a part of their spacing, in shuffled order."""
    if not t.numel():
        return t
    even = torch.linspace(-12, 12, t.numel(), dtype=torch.float64)
    order = torch.randperm(t.numel(), generator=torch.Generator().manual_seed(1))
    return (even + offset * 24 / t.numel())[order].reshape(t.shape).to(t.dtype)


_CONSTANTS = ("all zeros", "all ones")
_ORDINARY: dict[str, Callable[[Tensor], Tensor]] = {
    "exact zeros": _half_zero,
    "all zeros": torch.zeros_like,
    "all ones": torch.ones_like,
    "negated": lambda t: -t,
    "positive": _positive,
    "negative": lambda t: -_positive(t),
    "larger": lambda t: t * _LARGE,
    "smaller": lambda t: t / 16,
    "whole numbers": lambda t: t if t.is_complex() else (2 * t).round(),
    "all equal": _tied,
}


def _transposed(t: Tensor) -> Tensor:
    return t.transpose(-1, -2).clone(memory_format=torch.contiguous_format).transpose(-1, -2)


def sliced(t: Tensor) -> Tensor:
    """Return the values of `t` with a stride of 2 in the last dimension."""
    wide = t.new_zeros((*t.shape[:-1], 2 * t.shape[-1]))
    wide[..., ::2] = t
    return wide[..., ::2]


def _offset(t: Tensor) -> Tensor:
    padded = t.new_zeros(t.numel() + 3)
    padded[3:] = t.flatten()
    return padded[3:].view(t.shape)


_LAYOUTS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], bool]]] = {
    "transposed": (_transposed, lambda t: t.ndim >= 2),
    "sliced with a step": (sliced, lambda t: t.ndim >= 1),
    "non-zero storage offset": (_offset, lambda t: True),
    "channels last": (lambda t: t.contiguous(memory_format=torch.channels_last), lambda t: t.ndim == 4),
}


def shared(case: Case) -> Iterator[Case]:
    """Yield the case with one tensor passed as two arguments, for each pair of equal shape."""
    for order, first in enumerate(case.wrt):
        for second in case.wrt[order + 1 :]:
            a, b = case.values[first], case.values[second]
            if a.shape == b.shape and a.dtype == b.dtype:
                yield case.with_values({second: a}, f"{case.names[second]} the same tensor as {case.names[first]}")
