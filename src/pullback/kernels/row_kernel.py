"""A compiled region of rows."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.graph.extents import Kind, kind_of
from pullback.kernels import build
from pullback.kernels.compiled import NOTHING_TAKEN, Compiled
from pullback.kernels.direct import direct_call
from pullback.kernels.layout import Strides, expanded
from pullback.kernels.regions import value_of
from pullback.kernels.row_source import row_source_of
from pullback.kernels.rows import RowRegion, is_reduction


class RowKernel(Compiled):
    """A compiled region of rows."""

    def __init__(self, region: RowRegion) -> None:
        written = row_source_of(region, build.header())
        self.source, self.over = written.text, written.over
        self._run = build.function_of(self.source, len(region.inputs) + len(region.outputs) + 1)
        self._flat = [node in region.flat for node in region.inputs]
        reduced = [node.all_input_nodes[0] for node in region.nodes if is_reduction(node)]
        nodes = (reduced[:1], region.inputs, region.outputs)
        self._kinds = tuple([kind_of(value_of(node)) for node in of_one] for of_one in nodes)
        self._prepare(self._kinds)

    def _prepare(self, kinds: tuple[list[Kind], ...]) -> None:
        ((self._shape, _, _),), inputs, outputs = kinds
        self._rows, self._columns = math.prod(self._shape[:-1]), self._shape[-1]
        self._sizes = [(*size, 1) if flat else size for (size, _, _), flat in zip(inputs, self._flat, strict=True)]
        self._outputs = [(size, dtype) for size, _, dtype in outputs]
        self._layouts: dict[tuple[Strides, ...], tuple[Any, frozenset[int]]] = {}
        steps, scattered = self._layout(tuple(stride for _, stride, _ in inputs))
        last = (steps, self._rows, self._columns)

        def strided(*inputs: Tensor) -> Any:
            return self._any(*inputs)

        call: Any = strided if scattered else direct_call(self._run, inputs, outputs, last, self._any)
        call.kernel = self
        self.call = call

    def _any(self, *inputs: Tensor, taken: Mapping[int, int] = NOTHING_TAKEN) -> Any:
        strides = tuple([x.stride() for x in inputs])
        known = self._layouts.get(strides)
        if known is None:
            known = self._layouts[strides] = self._layout(strides)
        steps, scattered = known
        if scattered:
            inputs = tuple(self._dense(x, i) if i in scattered else x for i, x in enumerate(inputs))
        outputs = [
            inputs[taken[i]] if i in taken and inputs[taken[i]].is_contiguous() else torch.empty(shape, dtype=dtype)
            for i, (shape, dtype) in enumerate(self._outputs)
        ]
        pointers = [x.data_ptr() for x in inputs] + [y.data_ptr() for y in outputs]
        self._run(*pointers, steps, self._rows, self._columns)
        return outputs[0] if len(outputs) == 1 else outputs

    def _layout(self, strides: tuple[Strides, ...]) -> tuple[Any, frozenset[int]]:
        """Return the steps for the kernel, and which inputs have to be copied for it."""
        steps: list[int] = []
        scattered = set()
        for i, (stride, size) in enumerate(zip(strides, self._sizes, strict=True)):
            wide = expanded((*stride, 0) if self._flat[i] else stride, size, self._shape)
            row = _row_step(self._shape[:-1], wide[:-1])
            if row is None or wide[-1] not in (0, 1):
                scattered.add(i)
                row = size[-1] if size else 1  # as `_dense` has it
                wide = (int(row > 1),)
            steps += (row, wide[-1])
        return (ctypes.c_int64 * len(steps))(*steps), frozenset(scattered)

    def _dense(self, x: Tensor, i: int) -> Tensor:
        """Return a copy of an input, in the order of rows."""
        x = x.detach().reshape(self._sizes[i])
        columns = x.shape[-1] if x.dim() else 1
        return x.expand(*self._shape[:-1], columns).contiguous()


def _row_step(shape: Sequence[int], strides: Strides) -> int | None:
    """Return the distance from row to row, if it is the same for all; their dimensions are in row-major order."""
    step, rows = None, 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if step is None:
            step = stride
        elif stride != step * rows:
            return None
        rows *= size
    return step or 0
