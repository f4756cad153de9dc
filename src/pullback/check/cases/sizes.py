"""From one working example to others of other sizes: 1, 0 and primes, and shapes that broadcast.

Sizes are changed together: every dimension that has size 5 in the example is taken to be the same dimension, so that
matrices still fit each other; then equal sizes of one tensor are parted. A variant is only a proposal: one that the
forward refuses is not a valid input and is dropped by whoever runs it.
"""

from __future__ import annotations

import ast
import functools
import linecache
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from types import FunctionType

import torch
from torch import Tensor
from torch.nn import Module

from pullback.check.case import Case, is_differentiable
from pullback.check.cases.repro import GAP, source_of
from pullback.check.cases.structure import (
    NO_BOUND,
    NO_SIZE,
    are_distinct,
    has_unit_rows,
    is_permutation,
    is_structured,
    partitions,
)
from pullback.dtypes import has_integers, has_reals, is_opaque

PRIMES = (2, 7, 11)
POINTS = (2, 3, 4)
"""Sizes of a last dimension that may hold coordinates: of a plane, of space, a quaternion."""
_SHORTEST = 3
"""Length from which a symmetric row is unlikely to be a coincidence."""
_BLOCK = re.compile(r"chunk|block", re.IGNORECASE)
"""Matches names of lengths of blocks."""


def other_sizes(case: Case) -> Iterator[Case]:
    """Yield the case with sizes 1, 0 and prime, and with single inputs of smaller, broadcastable shapes."""
    yield from parted_sizes(case)
    yield from uniform_sizes(case)
    yield from broadcasts(case)


def uniform_sizes(case: Case) -> Iterator[Case]:
    """Yield the case with each size class set to 1, to 0 and to a prime, and all of them to 1 or 0.

    Sizes that the weights of a module have stay: these would not follow.
    """
    held = _sizes_of_weights(case)
    present = sorted(case.sizes - held)
    for size in present:
        fixed = any(size in v.shape and is_structured(v) for v in case.tensors)
        for new in (1, 0, *PRIMES):
            if new != size and not (fixed and new > size):
                yield resized(case, {size: new})
    if len(present) > 1:
        several = (
            sum(isinstance(v, Tensor) for v in case.values) > 1
        )  # one's number of channels may be the other's sizes
        for new in (1, 0):
            all_of_them = resized(case, dict.fromkeys(present, new))
            yield replace(all_of_them, doubtful=all_of_them.doubtful or several)


_LARGEST_BLOCK = 512
_LARGEST_TWICE = 64
"""Block size up to which two blocks and one element more are tried."""
_MOST_ELEMENTS = 1 << 17


def around_blocks(case: Case, blocks: Collection[int]) -> Iterator[Case]:
    """Yield the case with each size class next to the sizes of the blocks in which kernels process elements.

    A kernel of full blocks does not show what it does in the last one, or with a second one.
    """
    known = sorted((block for block in blocks if 1 < block <= _LARGEST_BLOCK), reverse=True)
    if not known:
        return
    largest = known[0]
    # The second is for rows of which a kernel takes the halves.
    twice = [2 * largest + 1, 2 * largest + 2] if largest <= _LARGEST_TWICE else []
    lengths = dict.fromkeys([largest + 1, largest - 1, *_even(largest), *twice, *(block + 1 for block in known[1:])])
    yield doubled(case)  # several heads of each group, and several groups
    for new in lengths:
        yield from _each(case, new)


def past_a_block(case: Case, blocks: Collection[int]) -> Iterator[Case]:
    """Yield the case with each size class one more than the largest block, beside the change that it already has."""
    largest = max((block for block in blocks if 1 < block <= _LARGEST_BLOCK), default=0)
    if largest:
        yield from (replace(more, label=f"{case.label}, {more.label}") for more in _each(case, largest + 1))


def even(case: Case, blocks: Collection[int]) -> Iterator[Case]:
    """Yield the case with each size class a multiple of 16, but not of the largest block.

    Triton's compiler itself asks whether 16 divides a size. A kernel that asks the same leaves out masks too often.
    """
    for new in _even(max((block for block in blocks if block <= _LARGEST_BLOCK), default=0)):
        yield from _each(case, new)


def _even(block: int) -> list[int]:
    return [block + _LANES] if block > _LANES and block % _LANES == 0 else []


def _each(case: Case, new: int) -> Iterator[Case]:
    """Yield the case with each size class changed to a size from 2."""
    for size in sorted(case.sizes - _sizes_of_weights(case) - {1}, reverse=True):
        is_fixed = any(size in v.shape and is_structured(v) for v in case.tensors)
        if new == size or new < 2 or (is_fixed and new > size):
            continue
        if _elements_with(case, {size: new}) <= _MOST_ELEMENTS:
            yield resized(case, {size: new})


def doubled(case: Case) -> Case:
    """Return the case with twice each size, also of those that are 1."""
    change = {size: 2 * size for size in sorted(case.sizes - _sizes_of_weights(case) | {1}) if size}
    return replace(resized(case, change), label="each size doubled")


def beyond(case: Case, lengths: Collection[int]) -> Iterator[Case]:
    """Yield the case with each size class beyond one of some lengths, from the shortest: those of blocks, of chunks."""
    for length in sorted(lengths):
        for size in sorted(case.sizes - _sizes_of_weights(case) - {1}, reverse=True):
            if size <= length and _elements_with(case, {size: length + 1}) <= _MOST_ELEMENTS:
                yield resized(case, {size: length + 1})


def partly_filled(case: Case, blocks: Collection[int]) -> Iterator[Case]:
    """Yield the case with its largest size, if it exceeds a block, as one block and a third of another."""
    longest = max(case.sizes - _sizes_of_weights(case), default=0)
    shorter = [block for block in blocks if 1 < block < longest]
    if shorter:
        yield resized(case, {longest: max(shorter) + max(shorter) // 3})


def single(case: Case) -> Iterator[Case]:
    """Yield the case with each size class 1: one token after a state."""
    for size in sorted(case.sizes - _sizes_of_weights(case) - {1}, reverse=True):
        yield resized(case, {size: 1})


@functools.lru_cache(maxsize=64)
def lengths_in(file: str) -> frozenset[int]:
    """Return the whole numbers in the code of a file that may be lengths of blocks and chunks; none if unreadable."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return frozenset()
    numbers = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is int}
    return frozenset(n for n in numbers if n % _LANES == 0 and _LANES < n <= _LONGEST)


_LANES = 16
"""Lengths of blocks are multiples of it, for `tl.dot` takes no shorter ones."""
_LONGEST = 4096


def _elements_with(case: Case, change: dict[int, int]) -> int:
    return sum(math.prod(change.get(size, size) for size in t.shape) for t in case.all_tensors.values())


def keeps_sizes(base: Case, case: Case) -> bool:
    """Whether the sizes of a variant fit each other if those of the example do.

    Whole numbers in tensors may count or index any dimension: beside them no size has changed.
    """
    if not fit(base, case):
        return False
    after = case.all_tensors
    same = all(t.shape == after[p].shape for p, t in base.all_tensors.items() if p in after)
    return same or not any(map(_counts, (*base.values, *case.values)))


def fit(base: Case, case: Case) -> bool:
    """Whether sizes that are equal in the example, in whatever tensors and numbers, are equal in a variant.

    A size that is a product or a multiple of others still is, and a dimension of which another tensor's is a multiple,
    and a number of blocks of the length that an argument tells, and the length of offsets. No part is longer than the
    whole number that bounds it in the example.
    """
    before, after = base.all_tensors, case.all_tensors
    if case.doubtful or any(t.shape and not t.numel() for t in after.values()):
        return False
    change: dict[int, int] = {}
    for p in before.keys() & after.keys():
        if before[p].ndim != after[p].ndim:
            return False
        for old, new in zip(before[p].shape, after[p].shape, strict=True):
            if change.setdefault(old, new) != new:
                return False
    if not all(partition.is_bounded(case) for partition in partitions(base)):
        return False
    bounds = _bounds(base)
    given = enumerate(zip(base.values, case.values, strict=False))  # the variant may give what has a default
    numbers = [(old, new) for p, (old, new) in given if type(old) is int and abs(old) > 1 and p not in bounds]
    if not all(type(new) is int and new == change.get(old, old) for old, new in numbers):
        return False
    moved = {old: new for old, new in change.items() if old != new}
    if not moved:
        return True
    offsets = _counted_offsets(base)
    if any(change.get(n + 1, n + 1) != change.get(n, n) + 1 for n in offsets.values()):
        return False
    before = {p: t for p, t in before.items() if p not in offsets}  # their lengths are no products, nor multiples
    if not _keeps_groups(before, after):
        return False
    if 1 in moved and _are_joined(before.values()):
        return False
    divides = all(new % m == 0 for n, m in numbers for old, new in moved.items() if old % n == 0)
    every = {**{size: change[size] for t in before.values() for size in t.shape if size in change}, **dict(numbers)}
    if not all(_holds(blocks, change, case) for blocks in _blocks(base)):
        return False
    pairs = _factors(before.values(), {n for n, _ in numbers})
    return divides and all(a * b not in every or every[a * b] == every[a] * every[b] for a, b in pairs)


def _keeps_groups(before: Mapping[int, Tensor], after: Mapping[int, Tensor]) -> bool:
    """Whether a dimension that is a multiple of another tensor's still is, or divides it: heads that share a key."""
    pairs = [(p, q) for p, q in permutations(before.keys() & after.keys(), 2) if before[p].ndim == before[q].ndim]
    dims = [(before[p].shape[d], before[q].shape[d], after[p].shape[d], after[q].shape[d])
            for p, q in pairs for d in range(before[p].ndim)]  # fmt: skip
    return all(
        new % more == 0 or more % new == 0 for old, many, new, more in dims if many > old > 0 and many % old == 0
    )


def _factors(tensors: Iterable[Tensor], numbers: set[int]) -> Iterator[tuple[int, int]]:
    """Yield pairs of sizes, or whole numbers, whose product may be another size on purpose: heads and their width.

    A square counts if a tensor has the size twice: that 4 · 4 is the 16 of a tensor of shape (4, 16) is a coincidence.
    So is a product beside both its factors in one tensor: a batch of 2, of 8 steps, beside a width of 16.
    """
    shapes = [[n for n in t.shape if n > 1] for t in tensors]
    pairs = {*combinations({n for shape in shapes for n in shape} | {n for n in numbers if n > 1}, 2)}
    pairs |= {(n, n) for shape in shapes for n in shape if shape.count(n) > 1}
    yield from (pair for pair in pairs if not any({*pair, math.prod(pair)} <= {*shape} for shape in shapes))


def _are_joined(tensors: Iterable[Tensor]) -> bool:
    """Whether one tensor has another's shape without one of its sizes 1, as that of joined heads, if there is one."""
    shapes = {tuple(t.shape) for t in tensors}
    return any(shape[:k] + shape[k + 1 :] in shapes for shape in shapes for k, n in enumerate(shape) if n == 1)


def changes(base: Case, case: Case) -> dict[int, int]:
    """Return the sizes of tensors, and what each is in a variant; without those that are not the same everywhere."""
    before, after = base.all_tensors, case.all_tensors
    pairs: set[tuple[int, int | None]] = set()
    for p in before.keys() & after.keys():
        is_alike = before[p].ndim == after[p].ndim
        pairs |= {*zip(before[p].shape, after[p].shape if is_alike else [None] * before[p].ndim, strict=True)}
    times = Counter(old for old, _ in pairs)
    return dict(sorted((old, new) for old, new in pairs if times[old] == 1 and new is not None))


def made_even(base: Case, case: Case) -> dict[int, int]:
    """Return the last sizes of tensors that are odd in a variant, and even in the example, and for each one more.

    A kernel may take the halves of rows without a check.
    """
    last = {t.shape[-1] for t in base.all_tensors.values() if t.ndim}
    pairs = changes(base, case).items()
    return {new: new + 1 for old, new in pairs if old in last and old % 2 == 0 and new % 2 == 1}


def keeps_ratios(base: Case, case: Case) -> bool:
    """Whether each size of a variant that was a multiple of another, such as that of two matrices in one, still is."""
    change = changes(base, case)
    if not base.sizes <= change.keys():
        return False
    pairs = ((a, b) for a in change for b in change if 1 < a < b and b % a == 0)
    return all(change[b] * a == change[a] * b for a, b in pairs)


def _sizes_of_weights(case: Case) -> set[int]:
    """Return the sizes that the subject holds, and those of the weights of the modules among the arguments."""
    return {*case.fixed} | {s for v in case.values if isinstance(v, Module) for t in v.parameters() for s in t.shape}


def parted_sizes(case: Case) -> Iterator[Case]:
    """Yield the case with one of the equal sizes of a tensor changed: square images conceal swapped sizes.

    Tensors of one shape change together, then each of them alone. A matrix may have to be square, without a check, and
    so may a filter beside an image: failures are doubtful, but for the largest tensor if it has four dimensions.
    """
    held = _sizes_of_weights(case)
    tensors = case.strided
    largest = max((t.numel() for t in tensors.values()), default=0)
    for shape in dict.fromkeys(case.values[p].shape for p in case.wrt if p in tensors):
        alike = [p for p, t in tensors.items() if t.shape == shape]
        if any(is_structured(tensors[p]) for p in alike):
            continue
        twice = [d for d, size in enumerate(shape) if size > 1 and shape.count(size) > 1 and size not in held]
        groups = [alike, *([p] for p in alike)] if len(alike) > 1 else [alike]
        for group in groups:
            for dim in dict.fromkeys((twice[-1], twice[0])) if twice else ():
                names = ", ".join(case.names[p] for p in group)
                yield case.with_values(
                    {p: _grown(tensors[p], dim) for p in group},
                    f"dim {dim} of {names}: {shape[dim]} -> {shape[dim] + 2}",
                    doubtful=case.doubtful or len(shape) < _IMAGE or math.prod(shape) < largest,
                )


_IMAGE = 4
"""Dimensions of a batch of images."""


def is_parted(base: Case, case: Case) -> bool:
    """Whether a variant differs in one of the equal sizes of images alone, as height and width are, not in doubt."""
    if case.doubtful:
        return False
    before, after = base.all_tensors, case.all_tensors
    moved = [(t.shape, after[p].shape) for p, t in before.items() if p in after and after[p].shape != t.shape]
    return bool(moved) and all(
        len(old) == len(new) >= _IMAGE and [old.count(a) > 1 for a, b in zip(old, new, strict=True) if a != b] == [True]
        for old, new in moved
    )


def _grown(t: Tensor, dim: int) -> Tensor:
    """Return a tensor with two more elements in a dimension."""
    grown = t.index_select(dim, torch.arange(t.shape[dim] + 2) % t.shape[dim])
    return _shuffled(grown) if has_reals(t) else grown


def other_lengths(case: Case) -> Iterator[Case]:
    """Yield the case with a last dimension of coordinates."""
    last = next((t.shape[-1] for t in case.tensors if t.ndim), 0)
    for new in POINTS:
        if last and new not in case.sizes:  # with two equal sizes, confusing them has no effect
            yield replace(resized(case, {last: new}), label=case.label, required_property=f"a last dimension of {new}")


def broadcasts(case: Case) -> Iterator[Case]:
    """Yield the case with one input of a shape that broadcasts to the original, if there are several tensors.

    A forward may accept these by accident: a failure here is reported with that remark. Whole numbers may be indices
    into what would shrink, or lengths of it: beside them nothing does. Each has memory of its own: a kernel that reads
    beyond it must not find the rest of the original.
    """
    if sum(isinstance(v, Tensor) for v in case.values) < 2 or any(map(_counts, case.values)):
        return
    for position in case.wrt:
        t = case.values[position]
        if t.layout is not torch.strided:
            continue
        for dim in range(t.ndim):
            if t.shape[dim] > 1:
                one = t.narrow(dim, 0, 1).clone()
                yield case.with_values(
                    {position: one}, f"{case.names[position]} with size 1 in dim {dim}", doubtful=True
                )
        if t.ndim:
            first = t.reshape(-1)[:1].reshape(()).clone() if t.numel() else t.new_zeros(())
            yield case.with_values({position: first}, f"{case.names[position]} with no dimension", doubtful=True)
            if t.ndim > 1 and t.shape[0]:
                yield case.with_values(
                    {position: t[0].clone()}, f"{case.names[position]} without its first dimension", doubtful=True
                )


def _counts(value: object) -> bool:
    """Whether an argument holds whole numbers that may be indices or lengths."""
    if not isinstance(value, Tensor) or not has_integers(value) or value.dtype == torch.bool:
        return False
    return value.numel() > 0 and int(value.max()) > 0


def resized(case: Case, change: dict[int, int]) -> Case:
    """Return the case with every dimension of a size in `change` given its new size, values repeated.

    A whole-number argument equal to that size is taken to be that size, and goes with it, as does the number of blocks
    of a whole-number length into which it is divided, and the length of the offsets of so many parts.
    """
    parted, bounds = list(partitions(case)), _bounds(case)
    offsets = {partition.whole for partition in parted if partition.are_offsets}
    change = _with_offsets(case, change)
    follows = {
        p: change[v]
        for p, v in enumerate(case.values)
        if type(v) is int and v > 1 and v in change and not NO_SIZE.search(case.names[p])
    }
    numbers = _numbers_of_blocks(case, change, follows)
    every = {old: new for old, new in {**change, **numbers}.items() if new != old or old not in numbers}
    label = ", ".join(f"size {old} -> {new}" for old, new in every.items())
    case = case.with_values(follows)
    counts = [
        v
        for p, v in enumerate(case.values)
        if type(v) is int and abs(v) > 1 and p not in follows and p not in bounds and not NO_BOUND.search(case.names[p])
    ]
    whole = [t for t in case.all_tensors.values() if not is_differentiable(t)]
    fits = (
        0 not in follows.values()
        and case.fixed.isdisjoint(every)
        and not _leaves_a_multiple(case, change)
        and all(abs(c) < min(change.values()) for c in counts)
        and not any(is_permutation(v) for v in whole)
        and not any(may_hold_sizes(v) for v in case.values)
    )
    new = case.map_tensors(lambda t: _resize(t, every), label, doubtful=case.doubtful or not fits)
    rest = [p for p in range(len(case.values)) if p not in offsets]
    are_kept = _stay_distinct(case, new, rest)  # a scatter may rely on it
    for partition in parted:
        new = new if partition.holds(new) else partition.restored(new) or replace(new, doubtful=True)
    are_kept = are_kept and _stay_distinct(case, new, offsets)  # equal ones make an empty part
    return new if are_kept else replace(new, doubtful=True)


def _stay_distinct(before: Case, after: Case, positions: Iterable[int]) -> bool:
    """Whether whole numbers that are all different stay so."""
    return all(are_distinct(after.values[p], 0) for p in positions if are_distinct(before.values[p]))


def _bounds(case: Case) -> set[int]:
    """Return the positions of the whole numbers that bound the parts of a size, and are no sizes themselves."""
    return {p for partition in partitions(case) for p in partition.bounds if p not in partition.held}


def _counted_offsets(case: Case) -> dict[int, int]:
    """Return the positions of offsets, and their numbers of parts, if another tensor has a size n of n parts."""
    offsets = {partition.whole for partition in partitions(case) if partition.are_offsets}
    sizes = {size for p, t in case.all_tensors.items() if p not in offsets for size in t.shape}
    numbers = {p: case.values[p].numel() - 1 for p in sorted(offsets)}
    return {p: n for p, n in numbers.items() if n in sizes}


def _with_offsets(case: Case, change: Mapping[int, int]) -> dict[int, int]:
    """Return a change of sizes in which offsets of n parts have length n + 1 still, whichever of the two changes."""
    numbers = sorted(set(_counted_offsets(case).values()))
    found = dict(change)
    for n in reversed(numbers):
        if n not in found and found.get(n + 1, 0) > 1:
            found[n] = found[n + 1] - 1
    found |= {n + 1: found[n] + 1 for n in numbers if n in found}
    return found


@dataclass(frozen=True)
class _Blocks:
    """A size that is the number of blocks into which another is divided, the last of which may not be full.

    Attributes:
        size: what is divided.
        at: position of the whole number that is the length of a block.
        number: ⌈size / length⌉.
    """

    size: int
    at: int
    number: int


def _blocks(case: Case) -> Iterator[_Blocks]:
    """Yield the sizes that are numbers of blocks of a length among the arguments.

    One that stands beside the size that is divided is a coincidence: 2 heads, or a batch of 2, of 70 steps.
    """
    shapes = [t.shape for t in case.all_tensors.values()]
    lengths = ((p, v) for p, v in enumerate(case.values) if type(v) is int and v > 1)
    for p, length in lengths:
        if not (_BLOCK.search(case.names[p]) or length % _LANES == 0):
            continue
        for size in sorted(case.sizes):
            number = -(-size // length)
            if number > 1 and number in case.sizes and not any(size in shape and number in shape for shape in shapes):
                yield _Blocks(size, p, number)


def _holds(blocks: _Blocks, change: Mapping[int, int], case: Case) -> bool:
    """Whether a number of blocks is one still, in a variant with other sizes."""
    size = change.get(blocks.size, blocks.size)
    return bool(change.get(blocks.number, blocks.number) == -(-size // case.values[blocks.at]))


def _numbers_of_blocks(case: Case, change: Mapping[int, int], follows: Mapping[int, int]) -> dict[int, int]:
    """Return the numbers of blocks, and what each is after a change of sizes, and of the whole numbers that follow."""
    found: dict[int, set[int]] = {}
    for blocks in _blocks(case):
        length = follows.get(blocks.at, case.values[blocks.at])
        if blocks.size in change and length > 0:
            found.setdefault(blocks.number, set()).add(-(-change[blocks.size] // length))
    return {number: new.pop() for number, new in found.items() if len(new) == 1}


def _leaves_a_multiple(case: Case, change: dict[int, int]) -> bool:
    """Whether a size becomes 1 in one tensor and stays, several times over, in another: gates of a cell, heads.

    What fits no longer may still run, since a size of 1 broadcasts.
    """
    shrunk = [size for size, new in change.items() if new == 1 and size > 1]
    shapes = [t.shape for t in case.all_tensors.values()]
    several = {times * size for size in shrunk for times in _TIMES} - change.keys()
    return any(
        not several.isdisjoint(one)
        and any(other is not one and not change.keys().isdisjoint(other) for other in shapes)
        for one in shapes
    )


_TIMES = (2, 3, 4)


def may_hold_sizes(value: object) -> bool:
    """Whether an argument may depend on the sizes of the example, as a module or an operator does."""
    if isinstance(value, Tensor | FunctionType | type):
        return False
    return isinstance(value, Module) or source_of(value) == GAP


def _resize(t: Tensor, change: dict[int, int]) -> Tensor:
    if t.layout is not torch.strided:
        return _resize(t.to_dense(), change).to_sparse(layout=t.layout)
    like, original = t, t.shape
    grown = any(new > size for size, new in change.items() if size in original)
    for dim, size in enumerate(original):
        new = change.get(size, size)
        if new != size:
            t = t.index_select(dim, torch.arange(new) % size)
    if has_integers(t):
        return _fit_indices(t, change)
    if not grown or not t.numel() or is_opaque(t):
        return t
    return _mirrored(_shuffled(t), like)


def _shuffled(t: Tensor) -> Tensor:
    """Return a tensor with its elements shuffled and slightly apart: repeated rows would make matrices singular.

    Zeros and ones, and signs, stay what they are: they may be the labels of a loss. What is at most 1 in magnitude
    stays so, as shares do, and rows of length 1 keep it.
    """
    shuffled = t.flatten()[torch.randperm(t.numel(), generator=torch.Generator().manual_seed(0))]
    if bool(((t == 0) | (t.abs() == 1)).all()):
        return shuffled.reshape(t.shape)
    # Factors from 52/64 to 1, or from 1 to 76/64. Equal rows get other factors, unless 13 divides their length.
    step = -1 if bool((t.abs() <= 1).all()) else 1
    apart = 1 + step * (torch.arange(t.numel()) % 13) / 64
    moved = (shuffled * apart).reshape(t.shape).to(t.dtype)
    return torch.nn.functional.normalize(moved, dim=-1) if has_unit_rows(t) else moved


def _mirrored(t: Tensor, like: Tensor) -> Tensor:
    """The nearest tensor with the mirror symmetry, even or odd, of `like`, such as a filter's."""
    for dim, size in enumerate(like.shape):
        for sign in (1, -1):
            if size >= _SHORTEST and torch.equal(like, sign * like.flip(dim)):
                t = (t + sign * t.flip(dim)) / 2
    return t


def _fit_indices(t: Tensor, change: dict[int, int]) -> Tensor:
    """Keep integers that may index a dimension, or count up to its size, so that they still do after it has shrunk.

    A column of lengths may count one dimension and the next column another, so the largest element does not tell.
    """
    if t.dtype == torch.bool or not t.numel():
        return t
    shrunk = {old: new for old, new in change.items() if new < old}
    largest = int(t.max())
    limit = min((new for old, new in shrunk.items() if largest < old), default=0)
    if limit > 0 and largest not in shrunk:
        return t.remainder(limit)
    for old, new in sorted(shrunk.items(), reverse=True):
        t = torch.where((t <= old) & (t > new), new, t)
    return t
