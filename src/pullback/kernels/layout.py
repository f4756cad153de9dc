"""The access of a loop over rows and columns to tensors of any strides that are broadcast to one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Rows and columns that go through dense outputs in the order of their memory.

    Attributes:
        rows, columns: how many.
        steps: for each input the strides over rows and over columns, in elements; none if every input is
            as dense as the outputs.
    """

    rows: int
    columns: int
    steps: tuple[int, ...] | None


def layout_of(shape: Sequence[int], out: Strides, inputs: Sequence[Strides]) -> Layout | None:
    """Return the rows and columns of tensors of one shape; `None` if two loops are not enough.

    Args:
        shape: their shape; broadcast inputs are expanded to it, with strides of 0.
        out: strides of the outputs, which are dense.
        inputs: strides of each input.
    """
    if all(stride == out for stride in inputs):
        return Layout(1, _product(shape), None)
    loops: list[tuple[int, Strides]] = []  # from the outermost: size, strides of the output and of the inputs
    for i in sorted(range(len(shape)), key=lambda i: (-out[i], i)):
        if shape[i] == 1:
            continue
        strides = (out[i], *(stride[i] for stride in inputs))
        if loops and all(a == b * shape[i] for a, b in zip(loops[-1][1], strides, strict=True)):
            loops[-1] = (loops[-1][0] * shape[i], strides)
        else:
            loops.append((shape[i], strides))
    nothing = (0,) * (1 + len(inputs))
    if len(loops) == 1 and any(step not in (0, 1) for step in loops[0][1]):
        loops.append((1, (1, *nothing[1:])))  # rows of one number each
    loops = [*[(1, nothing)] * (2 - len(loops)), *loops]
    if len(loops) > 2 or any(step not in (0, 1) for step in loops[1][1]):
        return None
    (rows, outer), (columns, inner) = loops
    steps = [step for pair in zip(outer[1:], inner[1:], strict=True) for step in pair]
    return Layout(rows, columns, tuple(steps))


def readable(shape: Sequence[int], out: Strides, inputs: Sequence[Strides]) -> tuple[Layout, frozenset[int]]:
    """Return how a kernel reads inputs, as in `layout_of`, and which of them have to be copied for it by `dense`."""
    layout = layout_of(shape, out, inputs)
    if layout is not None:
        return layout, frozenset()
    scattered = frozenset(i for i, stride in enumerate(inputs) if stride != out and any(stride))
    layout = layout_of(shape, out, [out if i in scattered else stride for i, stride in enumerate(inputs)])
    assert layout is not None  # all but single numbers have the layout of the outputs
    return layout, scattered


def expanded(stride: Strides, size: Sequence[int], shape: Sequence[int]) -> Strides:
    """Return the strides of a tensor as if it were expanded to a shape."""
    missing = len(shape) - len(size)
    own = [0 if n == 1 and shape[missing + i] != 1 else s for i, (n, s) in enumerate(zip(size, stride, strict=True))]
    return (0,) * missing + tuple(own)


def dense(x: Tensor, shape: Sequence[int], out: Strides) -> Tensor:
    """Return a copy, expanded to a shape, in the layout of the outputs."""
    return torch.empty_strided(tuple(shape), out, dtype=x.dtype, device=x.device).copy_(x.detach().expand(tuple(shape)))


def in_stride(x: Tensor, stride: Strides) -> Tensor:
    """Return a tensor in the layout that it is to have."""
    if tuple(x.stride()) == stride:
        return x
    return torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device).copy_(x)


def _product(shape: Sequence[int]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total
