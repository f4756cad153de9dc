"""A region as a GPU kernel, compiled by Triton: the counterpart of `native.Kernel`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pullback.kernels.layout import Layout, Strides, dense, expanded, in_stride, readable
from pullback.kernels.regions import Region, value_of
from pullback.triton import build as triton_build
from pullback.triton.source import triton_source_of

BLOCK = 1024
"""Number of elements that one program computes."""
_INDEX = 2**31
"""Number of elements that a 32-bit index can address."""
_ALIGNED = 16
"""Bytes: Triton specialises kernels for tensors whose address is a multiple of this."""


class TritonKernel:
    """A region for inputs of the sizes and dtypes that it was made for and any strides.

    Triton compiles it ahead for the strides that were recorded, and for others when they are met.

    Attributes:
        source: Python source for Triton.
        over: which outputs may be written over which inputs: none, since memory on a GPU is at hand.
        call: takes the inputs, allocates the outputs and returns them: one tensor, or a list of several.
    """

    over: frozenset[tuple[int, int]] = frozenset()

    def __init__(self, region: Region) -> None:
        self.source = triton_source_of(region)
        self._run = triton_build.kernel_of(self.source)
        inputs, outputs = [value_of(node) for node in region.inputs], [value_of(node) for node in region.outputs]
        self._device = outputs[0].device
        self._shape, self._stride = tuple(region.shape), tuple(outputs[0].stride())
        self._sizes = [tuple(x.shape) for x in inputs]
        self._outputs = [(tuple(y.stride()), y.dtype) for y in outputs]
        self._layouts: dict[tuple[Strides, ...], tuple[tuple[Any, ...], frozenset[int]]] = {}
        self._launches: dict[tuple[Any, ...], Callable[..., None]] = {}
        numbers, _ = self._layout(tuple([tuple(x.stride()) for x in inputs]))
        dtypes = [t.dtype for t in (*inputs, *outputs)]
        triton_build.compile_ahead(self._run, self._device, [*dtypes, *numbers])

        def call(*inputs: Tensor) -> Any:
            return self._call(*inputs)

        call.kernel = self  # type: ignore[attr-defined]
        self.call: Any = call

    def _call(self, *inputs: Tensor) -> Any:
        strides = tuple([x.stride() for x in inputs])
        known = self._layouts.get(strides)
        if known is None:
            known = self._layouts[strides] = self._layout(strides)
        numbers, scattered = known
        if scattered:
            inputs = tuple(dense(x, self._shape, self._stride) if i in scattered else x for i, x in enumerate(inputs))
        device = inputs[0].device if inputs else self._device
        made = [
            torch.empty_strided(self._shape, self._stride, dtype=dtype, device=device) for _, dtype in self._outputs
        ]
        kind = (device.index, numbers, *[x.data_ptr() % _ALIGNED == 0 for x in inputs])
        launch = self._launches.get(kind)
        with triton_build.on(device):
            if launch is None:
                programs = -(-math.prod(self._shape) // BLOCK)
                launch = self._launches[kind] = triton_build.launcher(self._run, [*inputs, *made, *numbers], programs)
            launch(*inputs, *made, *numbers)
        results = [in_stride(y, stride) for y, (stride, _) in zip(made, self._outputs, strict=True)]
        return results[0] if len(results) == 1 else results

    def _layout(self, strides: tuple[Strides, ...]) -> tuple[tuple[Any, ...], frozenset[int]]:
        """Return the numbers that the kernel takes after its tensors, and which inputs have to be copied for it."""
        wide = [expanded(s, size, self._shape) for s, size in zip(strides, self._sizes, strict=True)]
        layout, scattered = readable(self._shape, self._stride, wide)
        steps = layout.steps or (0,) * (2 * len(wide))
        is_dense = layout.steps is None
        return (*steps, layout.columns, math.prod(self._shape), is_dense, _is_far(layout), BLOCK), scattered


def _is_far(layout: Layout) -> bool:
    """Whether places of elements, of those beyond the last one in its program too, need more than 32 bits."""
    steps = layout.steps or ()
    last = [(layout.rows - 1) * r + (layout.columns - 1) * c for r, c in zip(steps[::2], steps[1::2], strict=True)]
    return layout.rows * layout.columns + BLOCK > _INDEX or any(place >= _INDEX for place in last)
