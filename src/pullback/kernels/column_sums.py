"""Sums and means over rows, one per column, fused into the loop that computes or reads their operand.

Such a sum is the gradient of a weight that all rows share. The rows are divided into fixed shares with separate partial
sums, which are added up at the end, so that the result does not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.kernels import lowerings

aten = torch.ops.aten

_FEWEST_ROWS = 64
"""Minimum number of rows: below it partial sums would be as large as their operand, or there would be one share."""
_MEANS = (aten.mean.dim,)
COLUMN_SUMS = (aten.sum.dim_IntList, *_MEANS)
"""Ops that may be sums over rows."""
_NUMBER = {"F": "float", "D": "double"}


def columns_of(node: fx.Node) -> int:
    """Return how many columns a node keeps, if it is a sum or mean over rows that kernels compute; 0 otherwise.

    Rows are the outermost dimensions in memory. Its operand is dense and has a known size.
    """
    args: Any = node.args
    if node.target not in COLUMN_SUMS or node.kwargs or not 2 <= len(args) <= 3 or not args[1]:
        return 0
    source, result = _torch.traced_value(args[0]), _torch.traced_value(node)
    if (
        not source.dim()
        or source.dtype != result.dtype
        or source.dtype not in lowerings.COMPUTED
        or source.dtype == torch.bool
    ):
        return 0
    summed, keeps = {d % source.dim() for d in args[1]}, len(args) > 2 and args[2]
    stride = source.stride()
    order = [d for d in sorted(range(source.dim()), key=lambda d: (-stride[d], d)) if source.shape[d] != 1]
    kept = [d for d in order if d not in summed]
    if order[len(order) - len(kept) :] != kept or not kept:
        return 0
    at = {d: d if keeps else d - sum(s < d for s in summed) for d in kept}
    if any(result.stride(at[d]) != stride[d] for d in kept):
        return 0
    columns = math.prod(source.shape[d] for d in kept)
    return columns if source.numel() >= _FEWEST_ROWS * columns else 0


def parameters_of(sums: Sequence[fx.Node]) -> dict[str, str]:
    """Return the names of a share's sums in its lines, and the types that they point to."""
    return {f"c{i}": _NUMBER[_vector_of(node)] for i, node in enumerate(sums)}


def declared(sums: Sequence[fx.Node], period: str, width: str) -> list[str]:
    """Return the lines that declare the sums of all shares.

    Args:
        sums: their nodes.
        period: how many columns there are.
        width: to how many numbers a share adds.
    """
    types = parameters_of(sums)
    return [f"const ColumnSums<{number}> all_{name}(shares, {period}, {width});" for name, number in types.items()]


def shared_out(sums: Sequence[fx.Node], items: str, elements: str, few: str, work: Sequence[str]) -> list[str]:
    """Return the lines that do the work of all items, each share of them with separate sums.

    Args:
        sums: over rows.
        items: their number.
        elements: their number of elements in all.
        few: after how many of them the last partial sums are added up.
        work: the lines for one `item`, of a `share`.
    """
    names = parameters_of(sums)
    enough = f"(item - begin) % {few} == {few} - 1 && item + 1 < end"
    return [
        f"over(shares, {elements}, [&](int64_t share) {{",
        f"  const int64_t begin = share * {items} / shares, end = (share + 1) * {items} / shares;",
        *(f"  const auto of_{name} = all_{name}.of(share);" for name in names),
        "  for (int64_t item = begin; item < end; item++) {",
        *(f"    {line}" for line in work),
        *([f"    if ({enough}) {_each(names, 'add_up')};"] if sums else []),
        "  }",
        *([f"  {_each(names, 'finish')};"] if sums else []),
        "});",
    ]


def _each(names: Iterable[str], method: str) -> str:
    return ", ".join(f"of_{name}.{method}()" for name in names)


def put(sums: Sequence[fx.Node], to: Mapping[fx.Node, str], rows: str) -> list[str]:
    """Return the lines that add up the sums of all shares."""
    lines = []
    for name, node in zip(parameters_of(sums), sums, strict=True):
        divisor = f"(double)({rows})" if node.target in _MEANS else "1."
        lines.append(f"all_{name}.put<{_vector_of(node)}>({to[node]}, {divisor});")
    return lines


def _vector_of(node: fx.Node) -> str:
    value: Tensor = _torch.traced_value(node)
    return lowerings.COMPUTED[value.dtype]
