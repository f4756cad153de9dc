"""A compiled region of rows: one pass over each row per dependent reduction, and one more.

Sums accumulate in double precision and are rounded once: of n floats their error is at most n · 2⁻⁵³ Σ|xᵢ| before that,
to first order, in any order of summation. A per-row value is a vector with equal lanes.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pullback.graph.decisions import is_rounded
from pullback.graph.symbolic import Kind, kind_of
from pullback.kernels import build, lowerings
from pullback.kernels import sums as column_sums
from pullback.kernels.compiled import NOTHING_TAKEN, Compiled, direct_call
from pullback.kernels.layout import Strides, expanded
from pullback.kernels.regions import value_of
from pullback.kernels.rows import RowRegion, is_reduction
from pullback.kernels.source import Source
from pullback.kernels.writer import Writer, through, vector_of


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


aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _Reduction:
    """C++ code of a reduction over a row; `V` is the operand's vector type.

    Attributes:
        vector: type of the accumulator.
        start: its initial value.
        step: the statement that adds a vector.
        result: the final expression.
    """

    vector: str
    start: str
    step: str
    result: str


_REDUCTIONS: Mapping[Any, _Reduction] = {
    aten.sum.dim_IntList: _Reduction("D", "0.", "{0} + wide({1})", "as<V>(lanes_sum({0}))"),
    aten.mean.dim: _Reduction("D", "0.", "{0} + wide({1})", "as<V>(lanes_sum({0}) / set((double)n, D{{}}))"),
    aten.amax.default: _Reduction("V", "-__builtin_inf()", "maximum({0}, {1})", "lanes_maximum({0})"),
    aten.amin.default: _Reduction("V", "__builtin_inf()", "minimum({0}, {1})", "neg(lanes_maximum(neg({0})))"),
}


def row_source_of(region: RowRegion, header: str) -> Source:
    """Return the C++ source of a row region, for a header of vectors; `run` is the exported function.

    `run` takes a pointer for each input and each output, then a pointer to the steps of the inputs (over rows and over
    columns, in elements; over columns 0 or 1), then rows and columns.
    """
    writer = _Rows(region)
    return Source("\n".join(writer.source(header)) + "\n", frozenset(writer.over()))


class _Rows:
    """Writes the source."""

    def __init__(self, region: RowRegion) -> None:
        self._region = region
        self._pointwise = region.nodes[: len(region.nodes) - len(region.column_sums)]
        self._inside = set(self._pointwise)
        self._levels: dict[fx.Node, int] = {}
        for node in self._pointwise:
            ahead = max((self._levels.get(a, 0) for a in region.reads(node)), default=0)
            self._levels[node] = ahead + is_reduction(node)
        self._stored = [lowerings.STORED[value_of(node).dtype] for node in region.inputs]
        self._outputs = region.outputs[: len(region.outputs) - len(region.column_sums)]
        self._results = [lowerings.STORED[value_of(node).dtype] for node in self._outputs]
        self._added_to = column_sums.parameters_of(region.column_sums)
        summed = [node.all_input_nodes[0] for node in region.column_sums]
        self._summed = list(zip(self._added_to, summed, strict=True))
        self._values: dict[fx.Node, str] = {node: f"x{i}" for i, node in enumerate(region.inputs)}
        self._last_read: dict[fx.Node, int] = {}

    def source(self, header: str) -> list[str]:
        """Return the lines of the file."""
        inputs = [f"const {t}* p{i}, int64_t s{i}" for i, t in enumerate(self._stored)]
        outputs = [f"{t}* q{i}" for i, t in enumerate(self._results)]
        outputs += [f"{t}* {name}" for name, t in self._added_to.items()]
        lines = ['#include "types.h"', f'#include "{header}"', '#include "functions.h"', '#include "loop.h"']
        lines += [
            '#include "rows.h"',
            *self._headers(),
            "",
            f"static inline void row(int64_t n, {', '.join([*inputs, *outputs])}) {{",
        ]
        for level in range(max(self._levels.values()) + 1):
            lines += [f"  {line}" for line in (*self._of_rows(level), *self._pass(level))]
        return [*lines, "}", "", *self._run()]

    def over(self) -> Iterator[tuple[int, int]]:
        """Yield the pairs of an output and an input that it may be written over, once the source is written."""
        for i, output in enumerate(self._outputs):
            for j, a in enumerate(self._region.inputs):
                alike = self._region.is_whole(output) and self._region.is_whole(a)
                if alike and self._stored[j] == self._results[i] and self._last_read[a] <= self._levels[output]:
                    yield i, j

    def _of_rows(self, level: int) -> list[str]:
        """Return the lines for per-row values that are known once the passes before a level are done."""
        region = self._region
        lines = []
        if not level:
            alone = [(i, node) for i, node in enumerate(region.inputs) if region.is_of_rows(node)]
            lines += [f"const {vector_of(node)} x{i} = splat(p{i});" for i, node in alone]
        done = [node for node in self._pointwise if self._levels[node] == level and not region.is_whole(node)]
        for node in done:
            if not is_reduction(node):
                writer = Writer([node], [node], self._seen(self._values), prefix="r")
                lines += writer.lines()
                self._values[node] = writer.names[node]
            if node in self._outputs:
                lines.append(f"put(q{self._outputs.index(node)}, {self._values[node]}, 1);")
        return lines

    def _pass(self, level: int) -> list[str]:
        """Return the loop over the columns of a level: its reductions and stores."""
        region = self._region
        sums = [n for n in self._pointwise if is_reduction(n) and self._levels[n] == level + 1]
        stored = [n for n in self._outputs if region.is_whole(n) and self._levels[n] == level]
        by_column = [(name, a) for name, a in self._summed if self._levels.get(a, 0) == level]
        if not sums and not stored and not by_column:
            return []
        sources: list[fx.Node] = [n.all_input_nodes[0] for n in sums]
        ends = list(dict.fromkeys([*sources, *stored, *(a for _, a in by_column)]))
        nodes = self._needed(ends)
        around = [a for a in region.inputs if not region.is_of_rows(a)]
        read = [a for a in around if a in ends or any(a in region.reads(n) for n in nodes)]
        self._last_read.update(dict.fromkeys(read, level))
        writer = Writer(nodes, [n for n in ends if n in nodes], self._seen(self._values), prefix=f"v{level}_")
        body = writer.lines()
        value: Mapping[fx.Node, str] = writer.names
        kinds = [vector_of(a) for a in sources]
        how = [_REDUCTIONS[n.target] for n in sums]
        lines = []
        for i, (one, kind) in enumerate(zip(how, kinds, strict=True)):
            vector = one.vector.replace("V", kind)
            lines.append(f"{vector} a{level}_{i} = set({one.start}, {vector}{{}});")
        lines += ["for (int64_t i = 0; i < n; i += LANES) {", "  const bool whole = i + LANES <= n;"]
        for a in read:
            k = region.inputs.index(a)
            lines.append(
                f"  const {vector_of(a)} x{k} = whole ? get<false>(p{k}, i, s{k}) : part(p{k} + i * s{k}, s{k}, n - i);"
            )
        lines += [f"  {line}" for line in body]
        if sums:
            lines.append("  const M on = whole ? set(true, M{}) : first(n - i);")
        for i, (one, a) in enumerate(zip(how, sources, strict=True)):
            acc = f"a{level}_{i}"
            lines.append(f"  {acc} = where(on, {one.step.format(acc, value[a])}, {acc});")
        for n in stored:
            q = f"q{self._outputs.index(n)} + i"
            lines.append(f"  whole ? store({q}, {value[n]}) : put({q}, {value[n]}, n - i);")
        for c, a in by_column:
            more = f"store({c} + i, load({c} + i) + {value[a]})"
            lines.append(f"  whole ? {more} : put({c} + i, part({c} + i, 1, n - i) + {value[a]}, n - i);")
        lines.append("}")
        for i, (n, one, kind) in enumerate(zip(sums, how, kinds, strict=True)):
            result = one.result.replace("V", kind).format(f"a{level}_{i}")
            result = through(n, result) if is_rounded(n) else result
            lines.append(f"const {kind} t{level}_{i} = {result};")
            self._values[n] = f"t{level}_{i}"
        return lines

    def _seen(self, names: Mapping[fx.Node, str]) -> dict[fx.Node, str]:
        """Return names, of the views of values of rows too."""
        return {**names, **{view: names[node] for view, node in self._region.alias.items() if node in names}}

    def _needed(self, ends: Sequence[fx.Node]) -> list[fx.Node]:
        """Return the whole values that lead to some, these included, in order."""
        stack, needed = [n for n in ends if n in self._inside], set()
        while stack:
            node = stack.pop()
            if node not in needed and self._region.is_whole(node):
                needed.add(node)
                stack += [a for a in self._region.reads(node) if a in self._inside]
        return [node for node in self._pointwise if node in needed]

    def _headers(self) -> list[str]:
        return ['#include "sums.h"', '#include "column_sums.h"'] if self._summed else []

    def _run(self) -> list[str]:
        by_column, outputs = self._region.column_sums, self._region.outputs
        parameters = [f"const {t}* p{i}" for i, t in enumerate(self._stored)]
        parameters += [f"{lowerings.STORED[value_of(node).dtype]}* q{i}" for i, node in enumerate(outputs)]
        given = [f"p{i} + r * steps[{2 * i}], steps[{2 * i + 1}]" for i in range(len(self._stored))]
        given += [f"q{i} + r{' * n' * self._region.is_whole(node)}" for i, node in enumerate(self._outputs)]
        given += [f"of_{name}.recent.get()" for name in self._added_to]
        call = f"row(n, {', '.join(given)});"
        lines = [f'extern "C" void run({", ".join(parameters)}, const int64_t* steps, int64_t rows, int64_t n) {{']
        lines += [f"  huge(q{i}, rows * n);" for i, node in enumerate(self._outputs) if self._region.is_whole(node)]
        if not by_column:
            return [*lines, f"  over(rows, rows * n, [=](int64_t r) {{ {call} }});", "}"]
        to = {node: f"q{outputs.index(node)}" for node in by_column}
        of_shares = [
            "const int64_t shares = shares_of(rows);",
            *column_sums.declared(by_column, "n", "n"),
            *column_sums.shared_out(by_column, "rows", "rows * n", "FEW", ["const int64_t r = item;", call]),
            *column_sums.put(by_column, to, "rows"),
        ]
        return [*lines, *(f"  {line}" for line in of_shares), "}"]
