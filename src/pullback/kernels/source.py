"""A region as a C++ function: one loop over vectors that calls the functions of `include/`.

What only one side of a choice needs is computed only where some lane of a vector chooses that side: stable forms
choose among several by thresholds, and the forms of the tails are the dear ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from pullback.kernels import ops
from pullback.kernels.regions import Region, value_of

aten = torch.ops.aten


def source_of(region: Region, header: str) -> str:
    """Return the C++ source of a region, for a header of vectors; `run` is what it exports.

    `run` takes a pointer for each input and each output, then a pointer to the steps of the inputs (over rows and
    over columns, in elements), or null where each is as dense as the outputs, then rows and columns.
    """
    stored = [ops.STORED[_dtype(node)] for node in region.inputs]
    results = [ops.STORED[_dtype(node)] for node in region.outputs]
    xs = [f"x{i}" for i in range(len(stored))]
    parameters = [f"{vector_of(node)} {x}" for node, x in zip(region.inputs, xs, strict=True)]
    parameters += [f"{vector_of(node)}& y{i}" for i, node in enumerate(region.outputs)]
    names = dict(zip(region.inputs, xs, strict=True))
    writer = Writer(region.nodes, region.outputs, names, region.exact)
    body = [*writer.lines(), *(f"y{i} = {writer.names[node]};" for i, node in enumerate(region.outputs))]
    lines = [
        '#include "types.h"',
        f'#include "{header}"',
        '#include "ops.h"',
        '#include "loop.h"',
        "",
        f"static inline void step({', '.join(parameters)}) {{",
        *(f"  {line}" for line in body),
        "}",
        "",
        *_span(stored, results),
        "",
        *_run(stored, results),
    ]
    return "\n".join(lines) + "\n"


def _span(stored: Sequence[str], results: Sequence[str]) -> list[str]:
    """Return the loop over the columns of one row."""
    parameters = [f"const {t}* p{i}, int64_t s{i}" for i, t in enumerate(stored)]
    parameters += [f"{t}* q{i}" for i, t in enumerate(results)]
    declared = [f"    {_COMPUTED[t]} y{i};" for i, t in enumerate(results)]
    whole = ", ".join([*(f"get<DENSE>(p{i}, i, s{i})" for i in range(len(stored))), *_names("y", results)])
    rest = ", ".join([*(f"part<DENSE>(p{i}, i, s{i}, n - i)" for i in range(len(stored))), *_names("y", results)])
    return [
        "template <bool DENSE>",
        f"static inline void span(int64_t n, {', '.join(parameters)}) {{",
        "  int64_t i = 0;",
        "  for (; i + LANES <= n; i += LANES) {",
        *declared,
        f"    step({whole});",
        *(f"    store(q{i} + i, y{i});" for i in range(len(results))),
        "  }",
        "  if (i < n) {",
        *declared,
        f"    step({rest});",
        *(f"    put(q{i} + i, y{i}, n - i);" for i in range(len(results))),
        "  }",
        "}",
    ]


def _run(stored: Sequence[str], results: Sequence[str]) -> list[str]:
    """Return what is exported: the loop over rows and blocks of columns, on several threads where it is long."""
    parameters = [f"const {t}* p{i}" for i, t in enumerate(stored)]
    parameters += [f"{t}* q{i}" for i, t in enumerate(results)]
    n = len(stored)
    dense = ", ".join([*(f"p{i} + at, 1" for i in range(n)), *(f"q{i} + at" for i in range(len(results)))])
    strided = [f"p{i} + r * steps[{2 * i}] + c * steps[{2 * i + 1}], steps[{2 * i + 1}]" for i in range(n)]
    strided += [f"q{i} + at" for i in range(len(results))]
    return [
        f'extern "C" void run({", ".join(parameters)}, const int64_t* steps, int64_t rows, int64_t columns) {{',
        "  const int64_t blocks = (columns + BLOCK - 1) / BLOCK;",
        "  auto work = [=](int64_t item) {",
        "    const int64_t r = item / blocks, c = item % blocks * BLOCK, at = r * columns + c;",
        "    const int64_t count = columns - c < BLOCK ? columns - c : BLOCK;",
        "    if (!steps)",
        f"      span<true>(count, {dense});",
        "    else",
        f"      span<false>(count, {', '.join(strided)});",
        "  };",
        "  over(rows * blocks, rows * columns, work);",
        "}",
    ]


def _names(letter: str, of: Sequence[str]) -> list[str]:
    return [f"{letter}{i}" for i in range(len(of))]


_COMPUTED = {stored: ops.COMPUTED[dtype] for dtype, stored in ops.STORED.items()}


def _dtype(node: fx.Node) -> torch.dtype:
    dtype: torch.dtype = value_of(node).dtype
    return dtype


def vector_of(node: fx.Node) -> str:
    """Return the type of vector that a value is computed in."""
    return ops.COMPUTED[_dtype(node)]


@dataclass(eq=False, slots=True)
class _Side:
    """A side of a choice, or all that is always computed, which has no choice."""

    choice: fx.Node | None = None
    parent: _Side | None = None
    nodes: list[fx.Node] = field(default_factory=list)

    def path(self) -> list[_Side]:
        """Return the sides around this one, from the outermost on."""
        return [*(self.parent.path() if self.parent else []), self]


_CHEAP = frozenset(
    [
        *ops.COMPARING,
        *ops.LOGICAL,
        *ops.CHOOSING,
        *(getattr(getattr(aten, name), kind) for name in ("add", "sub", "mul") for kind in ("Tensor", "Scalar")),
        *(getattr(aten, name).default for name in ("neg", "abs", "clone", "alias", "detach", "sign", "relu")),
    ]
)
_WORTH = 8
"""How many cheap ops are worth a branch."""


class Writer:
    """Writes the lines that compute some nodes.

    Args:
        nodes: in an order in which each stands after what it reads.
        outputs: of the nodes, those that are read elsewhere.
        names: of what they read.
        exact: whether each op of 16 bits rounds its result, as PyTorch's kernels do.
        prefix: of the names that it gives.

    Attributes:
        names: those of the nodes too, once the lines are written.
    """

    def __init__(
        self,
        nodes: Sequence[fx.Node],
        outputs: Collection[fx.Node],
        names: Mapping[fx.Node, str],
        exact: bool = False,
        prefix: str = "v",
    ) -> None:
        self._nodes, self._outputs, self._exact, self._prefix = nodes, frozenset(outputs), exact, prefix
        self.names = dict(names)
        self._all = _Side()
        self._sides: dict[tuple[fx.Node, int], _Side] = {}
        self._divide()

    def lines(self) -> list[str]:
        """Return the lines."""
        return self._block(self._all, "")

    def _divide(self) -> None:
        """Find for each node the innermost side of a choice that all its uses lie in."""
        home: dict[fx.Node, _Side] = {}
        for node in reversed(self._nodes):
            around = [s for user in node.users for s in self._used_in(node, user, home)]
            home[node] = self._all if node in self._outputs else _common(around)
            for k in _branches(node):
                self._sides[node, k] = _Side(node, home[node])
        for node in self._nodes:
            home[node].nodes.append(node)
        for key, side in reversed(list(self._sides.items())):  # inner ones first
            if sum(_WORTH if n.target not in _CHEAP else 1 for n in side.nodes) < _WORTH:
                self._dissolve(key, side)

    def _used_in(self, node: fx.Node, user: fx.Node, home: dict[fx.Node, _Side]) -> list[_Side]:
        if user not in home:
            return []
        branches = _branches(user)
        if node in branches.values() and [*user.args].count(node) == 1:
            return [self._sides[user, next(k for k, a in branches.items() if a is node)]]
        return [home[user]]

    def _dissolve(self, key: tuple[fx.Node, int], side: _Side) -> None:
        assert side.parent is not None
        order = {node: i for i, node in enumerate(self._nodes)}
        side.parent.nodes = sorted([*side.parent.nodes, *side.nodes], key=order.__getitem__)
        for other in self._sides.values():
            if other.parent is side:
                other.parent = side.parent
        del self._sides[key]

    def _block(self, side: _Side, lanes: str) -> list[str]:
        """Return the lines of a side; `lanes` names those that take it, empty for all."""
        lines = []
        for node in side.nodes:
            vector, name = vector_of(node), f"{self._prefix}{len(self.names)}"
            if _branches(node):
                lines += self._choice(node, vector, lanes, name)
            else:
                lines.append(f"const {vector} {name} = {self._expression(node, vector)};")
            self.names[node] = name
        return lines

    def _choice(self, node: fx.Node, vector: str, lanes: str, name: str) -> list[str]:
        condition = self._operand(_condition(node), "M")
        lines, values = [], {}
        for k, branch in _branches(node).items():
            side = self._sides.get((node, k))
            if side is None or not side.nodes:
                values[k] = self._side_value(branch, vector)
                continue
            chosen = f"{name}_{k}"
            takes = condition if k == 0 else f"~{condition}"
            lines += [
                f"{vector} {chosen}{{}};",
                f"if (const M {name}_on{k} = {f'{lanes} & ' if lanes else ''}{takes}; any({name}_on{k})) {{",
                *(f"  {line}" for line in self._block(side, f"{name}_on{k}")),
                f"  {chosen} = {self._side_value(branch, vector)};",
                "}",
            ]
            values[k] = chosen
        return [*lines, f"const {vector} {name} = where({condition}, {values[0]}, {values[1]});"]

    def _side_value(self, branch: fx.Node | ops.Number, vector: str) -> str:
        return self._operand(branch, vector) if isinstance(branch, fx.Node) else str(ops.Number(branch.value, vector))

    def _expression(self, node: fx.Node, vector: str) -> str:
        if node.target == aten._to_copy.default:
            return self._cast(node, vector)
        wanted = vector
        if node.target in ops.COMPARING:
            wanted = ops.COMPUTED[_common_dtype(node)]
        text = self._mirrored(node, wanted)
        if not text:
            text = ops.expression(node, {a: self._operand(a, wanted) for a in node.all_input_nodes}, wanted)
        rounds = self._exact and _dtype(node).itemsize == 2
        return f"through<{ops.STORED[_dtype(node)]}>({text})" if rounds else text

    def _mirrored(self, node: fx.Node, vector: str) -> str:
        """Return what computes f(−x) of x, for the few f that share their work with f(x); nothing for others."""
        function = ops.MIRRORED.get(node.target)
        operand = node.all_input_nodes[0]
        if function is None or operand.target != aten.neg.default or operand.all_input_nodes[0] not in self.names:
            return ""
        return f"{function}({self._operand(operand.all_input_nodes[0], vector)})"

    def _cast(self, node: fx.Node, vector: str) -> str:
        (source,) = node.all_input_nodes
        text, to = self._operand(source, vector), _dtype(node)
        rounds = to.itemsize == 2 and _dtype(source) != to and _dtype(source) != torch.bool
        return f"through<{ops.STORED[to]}>({text})" if rounds else text

    def _operand(self, node: fx.Node, vector: str) -> str:
        """Return an operand as a vector of a type."""
        value = ops.constant_of(node)
        if value is not None:
            kept = torch.tensor(value, dtype=_dtype(node), device="cpu").item()
            return str(ops.Number(kept, vector))
        return _CASTS[vector_of(node), vector].format(self.names[node])


_CASTS = {
    **{(v, v): "{}" for v in "FDM"},
    ("F", "D"): "wide({})",
    ("D", "F"): "narrow({})",
    ("M", "F"): "number<F>({})",
    ("M", "D"): "number<D>({})",
    ("F", "M"): "truth({})",
    ("D", "M"): "truth({})",
}


def _common_dtype(node: fx.Node) -> torch.dtype:
    """Return the dtype in which operands are compared; that of a dimensionless one counts for less, as in PyTorch."""
    args: Sequence[Any] = node.args[:2]
    operands = [value_of(a) if isinstance(a, fx.Node) else a for a in args]
    common: torch.dtype = torch.result_type(*operands) if len(operands) == 2 else operands[0].dtype
    return torch.float32 if common == torch.bool else common


def _branches(node: fx.Node) -> dict[int, fx.Node | ops.Number]:
    """Return what a node chooses from: where its condition holds, and where not."""
    args: Sequence[Any] = node.args
    if node.target == aten.where.self:
        return {0: args[1], 1: args[2]}
    if node.target == aten.masked_fill.Scalar:
        return {0: ops.Number(args[2]), 1: args[0]}
    return {}


def _condition(node: fx.Node) -> fx.Node:
    args: Sequence[Any] = node.args
    condition: fx.Node = args[0] if node.target == aten.where.self else args[1]
    return condition


def _common(sides: Sequence[_Side]) -> _Side:
    """Return the innermost side that holds all of some."""
    first, *others = [side.path() for side in sides]
    for path in others:
        first = [a for a, b in zip(first, path, strict=False) if a is b]
    return first[-1]
