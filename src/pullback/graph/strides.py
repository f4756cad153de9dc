"""Layout of the results of PyTorch's elementwise kernels: TensorIterator's rule, which has no public interface."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, starmap

import torch
from torch import Tensor

Strides = tuple[int, ...]


def elementwise_strides(operands: Sequence[Tensor], shape: tuple[int, ...], any_order: bool = False) -> Strides | None:
    """Return the strides of an elementwise result; `None` if they depend on facts unknown here.

    These are whether a number counts as an operand and, with `any_order`, which of them comes first.
    """
    plain = row_major(shape)
    if all(x.shape == shape and x.stride() == plain for x in operands if x.dim()):
        return plain
    wide = [_expanded(x, shape) for x in operands]
    found = {_ordered(order, shape) for order in (permutations(wide) if any_order else (wide,))}
    if all(x.shape == shape for x in operands):
        found |= _kept(operands)
    return found.pop() if len(found) == 1 else None


def _kept(operands: Sequence[Tensor]) -> set[Strides]:
    """Return the strides that operands of one shape and layout give to a result, regardless of their order."""
    first = operands[0]
    if all(x.is_contiguous() for x in operands):
        return {row_major(first.shape)}
    if first.dim() == 4 and all(x.is_contiguous(memory_format=torch.channels_last) for x in operands):
        _, c, h, w = first.shape
        return {(c * h * w, 1, c * w, c)}
    return {first.stride()} if is_dense(first) and all(x.stride() == first.stride() for x in operands) else set()


def row_major(shape: Sequence[int]) -> Strides:
    """Return the strides of a contiguous tensor."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_dense(x: Tensor) -> bool:
    """Whether a tensor is non-overlapping and dense."""
    step = 1
    for stride, size in sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n != 1):
        if stride != step:
            return False
        step *= size
    return True


def _expanded(x: Tensor, shape: tuple[int, ...]) -> Strides:
    """Return the strides of an operand over the dimensions of the result; 0 where it is repeated."""
    missing = len(shape) - x.dim()
    sizes = shape[missing:]
    repeated = starmap(lambda s, own, n: 0 if own == 1 and n != 1 else s, zip(x.stride(), x.shape, sizes, strict=True))
    return (0,) * missing + tuple(repeated)


def _ordered(operands: Sequence[Strides], shape: tuple[int, ...]) -> Strides:
    """Return the strides of a result whose dimensions are permuted like the first operand that decides an order."""
    order = list(range(len(shape) - 1, -1, -1))  # from the innermost
    for i in range(1, len(order)):
        at = i
        for before in range(i - 1, -1, -1):
            larger = _compared(order[before], order[at], operands, shape)
            if larger > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif larger < 0:
                break
    strides = [0] * len(shape)
    step = 1
    for dim in order:
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides) if order != list(range(len(shape) - 1, -1, -1)) else row_major(shape)


def _compared(one: int, other: int, operands: Sequence[Strides], shape: tuple[int, ...]) -> int:
    """Compare two dimensions: 1 if the first is the outer one, −1 if the inner one, 0 if either order will do."""
    for strides in operands:
        a, b = strides[one], strides[other]
        if a == 0 or b == 0:
            continue
        if a != b:
            return 1 if a > b else -1
        if shape[one] > shape[other]:
            return 1
    return 0
