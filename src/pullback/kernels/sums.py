"""Sums and means over everything: the last step of a region, in the loop that computes their operand.

Such a sum is a loss, or the gradient of a number that all elements share. Each lane adds its 16 numbers of a tile in
the working type, since widening each would double the time. Each block adds its tiles to one of a fixed set of partial
sums in double precision, so that the result does not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.kernels import column_sums, lowerings

aten = torch.ops.aten

SUMS = (aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim)


def is_sum(node: fx.Node) -> bool:
    """Whether a node sums, or averages, all of an operand that a region computes, in a dtype that kernels compute.

    Sizes of other nodes may be unknown, and must not be read.
    """
    if node.target not in SUMS or node.kwargs:
        return False
    args: Any = node.args
    source, result = _torch.traced_value(args[0]), _torch.traced_value(node)
    return (
        isinstance(result, Tensor)
        and result.numel() == 1 < source.numel()
        and source.dtype == result.dtype
        and source.dtype in lowerings.COMPUTED
        and source.dtype != torch.bool
    )


def names_of(count: int) -> list[str]:
    """Return the names of the partial sums."""
    return [f"t{i}" for i in range(count)]


def over_sums(sums: Sequence[fx.Node], by_column: Sequence[fx.Node]) -> list[str]:
    """Return the lines that do all `work`, each share of it with separate sums, and add these up.

    Args:
        sums: over everything.
        by_column: over rows.
    """
    columns = [f"of_{name}.recent.get() + at % period" for name in column_sums.parameters_of(by_column)]
    given = ", ".join([*(f"partial[{i}][share]" for i in range(len(sums))), *columns])
    work = ["const int64_t at = item / blocks * columns + item % blocks * BLOCK;"] if by_column else []
    lines = ["const int64_t items = rows * blocks;"]
    lines += [f"double partial[{len(sums)}][SHARES][LANES] = {{}};"] if sums else []
    lines += _COLUMNS if by_column else ["const int64_t shares = SHARES;"]
    lines += column_sums.declared(by_column, "period", "width")
    lines += column_sums.shared_out(by_column, "items", "rows * columns", "few", [*work, f"work(item, {given});"])
    for i, node in enumerate(sums):
        total = f"total(partial[{i}])"
        if node.target in (aten.mean.default, aten.mean.dim):
            total = f"{total} / set((double)(rows * columns), D{{}})"
        lines.append(f"put(r{i}, as<{lowerings.COMPUTED[_torch.traced_value(node).dtype]}>({total}), 1);")
    to = {node: f"r{len(sums) + i}" for i, node in enumerate(by_column)}
    return [*lines, *column_sums.put(by_column, to, "rows * columns / period")]


_COLUMNS = [
    "const int64_t count = columns < BLOCK ? columns : BLOCK;",
    "const int64_t shares = shares_of(rows * columns / (period < count ? count : period));",
    "const int64_t width = columns % count || period % count ? period + count : period;",
    "const int64_t few = period <= count ? FEW : FEW * (period / count);",
]
"""An item has up to `count` numbers; the first may be of any column."""
