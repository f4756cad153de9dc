"""Packing and unpacking of masks in separate passes, where no region's kernel writes or reads the bits itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pullback.graph import bits
from pullback.graph.bits import bytes_of
from pullback.kernels import build
from pullback.kernels.layout import dense


@functools.cache
def passes() -> dict[Callable[..., Tensor], Callable[..., Tensor]]:
    """Return compiled functions in place of those of `pullback.graph.bits`.

    Raises:
        RunnerError: if they cannot be compiled here.
    """
    to_bits = build.function_of(_source("const boolean*", "Bits"), 2, 1)
    from_bits = build.function_of(_source("Bits", "boolean*"), 2, 1)

    def pack(mask: Tensor, stride: Sequence[int]) -> Tensor:
        if mask.stride() != stride:
            mask = dense(mask, mask.shape, tuple(stride))
        made = torch.empty(bytes_of(mask.numel()), dtype=torch.uint8)
        to_bits(mask.data_ptr(), made.data_ptr(), mask.numel())
        return made

    def unpack(given: Tensor, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
        made = torch.empty_strided(tuple(shape), tuple(stride), dtype=torch.bool)
        from_bits(given.data_ptr(), made.data_ptr(), made.numel())
        return made

    return {bits.pack: pack, bits.unpack: unpack}


def _source(given: str, made: str) -> str:
    return f"""#include "types.h"
#include "{build.header()}"
#include "functions.h"
#include "loop.h"

extern "C" void run({given} p, {made} q, int64_t n) {{
  over((n + BLOCK - 1) / BLOCK, n, [=](int64_t item) {{
    const int64_t begin = item * BLOCK, end = n - begin < BLOCK ? n : begin + BLOCK;
    int64_t at = begin;
    for (; at + LANES <= end; at += LANES) store(q + at, load(p + at));
    if (at < end) put(q + at, part(p + at, 1, end - at), end - at);
  }});
}}
"""
