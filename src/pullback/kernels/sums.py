"""Sums and means over everything: the last step of a region, in the loop that computes their operand.

Such a sum is a loss, or the gradient of a number that all elements share. Each lane adds its 16 numbers of a tile in
the working type, since widening each would double the time. Its 15 roundings are errors of up to 15 · 2⁻²⁴ Σ|xᵢ| in
float32 to first order, however many numbers there are (Higham, "Accuracy and stability of numerical algorithms", 2nd
ed., section 4.2); those of the doubles beyond are smaller for fewer than 2³⁰ tiles. Each block adds its tiles to one of
a fixed set of partial sums in double precision, so that the result does not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.kernels import lowerings
from pullback.kernels import sums as column_sums

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
        width: number of numbers that a share adds to.
    """
    types = parameters_of(sums)
    return [f"const ColumnSums<{number}> all_{name}(shares, {period}, {width});" for name, number in types.items()]


def shared_out(sums: Sequence[fx.Node], items: str, elements: str, few: str, work: Sequence[str]) -> list[str]:
    """Return the lines that do the work of all items, each share of them with separate sums.

    Args:
        sums: over rows.
        items: their number.
        elements: their number of elements in all.
        few: number of them after which the last partial sums are added up.
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
