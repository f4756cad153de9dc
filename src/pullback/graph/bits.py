"""Boolean residuals packed to one bit an element.

Eight elements share a byte, in memory order. `pack` ends the forward graph, `unpack` begins the backward graph. Here
both are PyTorch ops, for tracers and transforms; `pullback.kernels` fuses them into its own kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.graph.symbolic import kind_of

FEWEST = 2**12
"""Number of elements below which a separate packing call takes longer than writing the bytes that it saves."""


def pack(mask: Tensor, stride: Sequence[int]) -> Tensor:
    """Pack a mask into bits, in the memory order of these strides, without gaps."""
    flat = torch.empty_strided(mask.shape, stride, dtype=torch.uint8, device=mask.device).copy_(mask)
    flat = torch.nn.functional.pad(flat.as_strided((flat.numel(),), (1,)), (0, -flat.numel() % 8))
    # The i-th element of eight is shifted to bit i. No two share a bit, so their sum is their union, at most 255.
    return (flat.view(-1, 8) << _shifts(mask)).sum(1, dtype=torch.uint8)


def unpack(bits: Tensor, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Unpack bits to a mask of a shape and strides."""
    flat = ((bits.unsqueeze(1) >> _shifts(bits)) & 1).to(torch.bool)
    return flat.view(-1).as_strided(tuple(shape), tuple(stride))


def _shifts(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)


def is_of_bits(node: fx.Node) -> bool:
    """Whether a node packs or unpacks a mask."""
    return node.target in (pack, unpack)


def holds_bits(placeholder: fx.Node) -> bool:
    """Whether a graph's input is a packed mask."""
    return any(user.target is unpack for user in placeholder.users)


def bytes_of(count: int) -> int:
    """Bytes that a number of packed elements take."""
    return (count + 7) // 8


def is_packed(value: Any) -> bool:
    """Whether a residual is packed: a dense mask with enough elements."""
    if not isinstance(value, Tensor) or value.dtype != torch.bool:
        return False
    return is_without_gaps(value) and value.numel() >= FEWEST


def is_without_gaps(value: Tensor) -> bool:
    """Whether a CPU tensor's elements fill a contiguous range of memory, each at its own address."""
    if value.device.type != "cpu" or value.layout is not torch.strided:
        return False
    step = 1
    for stride, size in sorted((s, n) for s, n in zip(value.stride(), value.shape, strict=True) if n > 1):
        if stride != step:
            return False
        step *= size
    return True


def cross_as_bits(
    forward: fx.GraphModule, backward: fx.GraphModule, n_outputs: int, is_computed: Sequence[bool]
) -> None:
    """Pack the boolean residuals that a forward computes for its backward alone.

    Args:
        forward: returns outputs, then residuals.
        backward: takes residuals, then cotangents.
        n_outputs: number of outputs.
        is_computed: for each residual whether it is computed, rather than an input.
    """
    results: Any = forward.graph.output_node().args[0]
    given = backward.graph.find_nodes(op="placeholder")[: len(is_computed)]
    computed = [node for node, made in zip(given, is_computed, strict=True) if made]
    crossing = list(results)
    for i, placeholder in enumerate(computed, n_outputs):
        if is_packed(placeholder.meta["val"]) and results.index(results[i]) >= n_outputs:
            crossing[i] = _packed(results[i])
            _unpack(placeholder)
    forward.graph.output_node().args = (crossing,)
    forward.recompile()
    backward.recompile()


def _packed(made: fx.Node) -> fx.Node:
    """Pack a node's value, in its graph."""
    with made.graph.inserting_after(made):
        return made.graph.call_function(pack, (made, kind_of(_torch.traced_value(made))[1]))


def _unpack(given: fx.Node) -> None:
    """Turn a placeholder into packed bits, and give its users the unpacked mask."""
    shape, stride, _ = kind_of(_torch.traced_value(given))
    with given.graph.inserting_before(next(n for n in given.graph.nodes if n.op != "placeholder")):
        made = given.graph.call_function(unpack, (given, shape, stride))
    given.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)
    made.meta, given.meta = given.meta, {}
