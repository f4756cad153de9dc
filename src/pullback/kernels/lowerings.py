"""The lowerings of the registry by the targets of a graph's nodes, and the expressions of nodes.

An op without a lowering, or one that is called with other arguments, is left to PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx

from pullback.graph.symbolic import Extent
from pullback.ops.lowering import Lowering, NotLoweredError, Number, Operands
from pullback.ops.record import PointwiseOp
from pullback.ops.registry import ALL

aten = torch.ops.aten

COMPUTED = {torch.float32: "F", torch.float64: "D", torch.bfloat16: "F", torch.float16: "F", torch.bool: "M"}
"""Vector type in which values of a dtype are computed; 16-bit ones in float32."""
STORED = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "bfloat",
    torch.float16: "half",
    torch.bool: "boolean",
}


def _targets(op: PointwiseOp) -> Iterator[Any]:
    if op.lowering is None:
        return
    if op.lowering.target is not None:
        yield op.lowering.target
    for name in op.aten:
        packet = getattr(aten, name, None)
        yield from (getattr(packet, o) for o in op.lowering.overloads if packet and o in packet.overloads())


LOWERINGS: Mapping[Any, Lowering] = {
    target: op.lowering for op in ALL.values() if op.lowering is not None for target in _targets(op)
}
"""All lowerings, by target."""


def _of(kind: Operands) -> Mapping[Any, Lowering]:
    return {target: lowering for target, lowering in LOWERINGS.items() if lowering.operands is kind}


FLOATING = _of(Operands.NUMBERS)
COMPARING = _of(Operands.COMPARED)
LOGICAL = _of(Operands.TRUTHS)
SELECTING = _of(Operands.SELECTED)

FILLING = {getattr(aten, name).default: op.fill for op in ALL.values() if op.fill is not None for name in op.aten}
"""Ops that make a tensor of one number, with that number as a function of their arguments."""


def constant_of(node: fx.Node) -> Any:
    """Return the number that all of a node's value is; `None` if it is not made so."""
    if node.target not in FILLING:
        return None
    value = FILLING[node.target](node.args)
    return value if isinstance(value, int | float) and type(value) is not Extent else None


def is_lowered(node: fx.Node) -> bool:
    """Whether a node's arguments are among those that its lowering is for."""
    if node.target == aten._to_copy.default:
        return not node.kwargs.keys() - _OF_COPIES
    if node.target in SELECTING:
        return not node.kwargs
    try:
        return bool(expression(node, dict.fromkeys(node.all_input_nodes, "x"), "V"))
    except (NotLoweredError, ValueError, TypeError, AttributeError):
        return False


_OF_COPIES = {"dtype", "layout", "device", "pin_memory", "non_blocking", "memory_format"}


def expression(node: fx.Node, operands: Mapping[fx.Node, str], vector: str, rounded: torch.dtype | None = None) -> str:
    """Return the expression of a node, for operands in a vector type and numbers that may be rounded to a dtype.

    Raises:
        NotLoweredError: if it is called with unknown arguments.
    """
    lowering = LOWERINGS[node.target]
    args = node.args if rounded is None else [_rounded(a, rounded) for a in node.args]
    given = [_argument(a, operands, vector) for a in args]
    keywords = dict(node.kwargs)
    given += [_argument(keywords.pop(name), operands, vector) for name in lowering.keywords if name in keywords]
    keywords.pop("memory_format", None)
    if keywords:
        raise NotLoweredError(str(keywords))
    return lowering.write(given).replace("set_V(", f"set_{vector}(")


def _rounded(a: Any, dtype: torch.dtype) -> Any:
    return torch.tensor(a, dtype=dtype, device="cpu").item() if isinstance(a, int | float) else a


def _argument(a: Any, operands: Mapping[fx.Node, str], vector: str) -> Any:
    if isinstance(a, fx.Node):
        return operands[a]
    return a if a is None or isinstance(a, str) else Number(a, vector)
