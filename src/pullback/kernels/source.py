"""A region as a C++ function: loops over tiles of vectors that call the functions of `include/`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from pullback.kernels import lowerings
from pullback.kernels.reduced_precision import REDUCED, ReducedRegion, reduced_region_of
from pullback.kernels.regions import Region, behind, value_of
from pullback.kernels.sums import names_of, over_sums, parameters_of
from pullback.kernels.writer import Writer, vector_of


@dataclass(frozen=True, slots=True)
class Source:
    """Generated source of a kernel.

    Attributes:
        text: C++ source.
        over: pairs of an output and an input that it may overwrite if their layouts agree: they have one dtype, and no
            element is read after the one at its place is written.
    """

    text: str
    over: frozenset[tuple[int, int]]


def source_of(region: Region, header: str) -> Source:
    """Return the C++ source of a region, for a header of vectors; `run` is the exported function.

    `run` takes a pointer for each input and each output, then a pointer to the strides of the inputs (over rows and
    over columns, in elements), or null if each is as dense as the outputs, then rows and columns; and the number of
    columns of sums over rows, if there are any.
    """
    stored = [_stored(region, node) for node in region.inputs]
    results = [_stored(region, node) for node in region.stored]
    names = {node: f"x{i}" for i, node in enumerate(region.inputs)}
    summed = [node.all_input_nodes[0] for node in region.every_sum]
    ends = [*map(behind, region.stored), *(node for node in summed if node not in names)]
    plain = region.every_sum or region.bits or header not in REDUCED
    short = None if plain else reduced_region_of(region)
    writer = Writer(region.pointwise, ends, names, region.exact, short.functions if short else (), staged=True)
    if short and not all(map(writer.is_always_computed, short.guards)):
        short, writer = None, Writer(region.pointwise, ends, names, region.exact, staged=True)
    guards = RecomputeGuards(region, short) if short and short.guards else None
    lines = [
        '#include "types.h"',
        f'#include "{header}"',
        '#include "functions.h"',
        '#include "loop.h"',
        *(['#include "short.h"'] if short else []),
        *(['#include "rows.h"', '#include "sums.h"'] if region.every_sum else []),
        *(['#include "column_sums.h"'] if region.column_sums else []),
        "",
        *(guards.recomputation() if guards else []),
        *_span(region, writer, guards, stored, results),
        "",
        *_rest(stored, results, _added_to(region)),
        "",
        *_run(region, stored, results),
    ]
    return Source("\n".join(lines) + "\n", frozenset(_over(region, writer, guards)))


def _stored(region: Region, node: fx.Node) -> str:
    """Return the element type of an input or an output."""
    return "Bits" if node in region.bits else lowerings.STORED[value_of(node).dtype]


def _pointer(of: str, const: str = "") -> str:
    """Return the pointer type for an element type."""
    return of if of == "Bits" else f"{const}{of}*"


def _over(region: Region, writer: Writer, guards: RecomputeGuards | None) -> Iterator[tuple[int, int]]:
    last = {a: stage for stage in range(writer.count) for a in (region.inputs if guards else writer.reads(stage))}
    for i, output in enumerate(region.stored):
        for j, a in enumerate(region.inputs):
            if region.bits.intersection((a, output)):
                continue
            x, y = value_of(a), value_of(output)
            if (x.shape, x.dtype) == (y.shape, y.dtype) and last.get(a, 0) <= writer.stage(output):
                yield i, j


def _added_to(region: Region) -> dict[str, str]:
    """Return the names of the accumulators of sums, and the types that they point to."""
    return dict.fromkeys(names_of(len(region.sums)), "double") | parameters_of(region.column_sums)


def _parameters(stored: Sequence[str], results: Sequence[str], added_to: Mapping[str, str]) -> str:
    """Return the parameters of the function that computes some columns of one row."""
    of_inputs = [f"{_pointer(t, 'const ')} p{i}, int64_t s{i}" for i, t in enumerate(stored)]
    of_sums = [f"{t}* {name}" for name, t in added_to.items()]
    return ", ".join(["int64_t n", *of_inputs, *(f"{_pointer(t)} q{i}" for i, t in enumerate(results)), *of_sums])


def _span(
    region: Region, writer: Writer, guards: RecomputeGuards | None, stored: Sequence[str], results: Sequence[str]
) -> list[str]:
    """Return the loops over whole vectors of columns of one row, a tile of them after another."""
    partial, added_to = names_of(len(region.sums)), _added_to(region)
    summed = [(name, node.all_input_nodes[0]) for name, node in zip(added_to, region.every_sum, strict=True)]
    tiles = [(name, vector_of(node)) for name, node in summed if name in partial]
    lines = [
        "template <bool DENSE>",
        f"static void span({_parameters(stored, results, added_to)}) {{",
        *(f"  D sum_{t} = load({t});" for t in partial),
        *(f"  {line}" for line in writer.arrays()),
        *([f"  {line}" for line in guards.arrays()] if guards else []),
        "  for (int64_t i = 0; i < n; i += TILE * LANES) {",
        "    const int64_t end = n - i < TILE * LANES ? n : i + TILE * LANES;",
        *(f"    {vector} of_tile_{t} = set_{vector}(0);" for t, vector in tiles),
    ]
    for stage in range(writer.count):
        read = [(vector_of(node), region.inputs.index(node)) for node in writer.reads(stage)]
        done = [(i, node) for i, node in enumerate(map(behind, region.stored)) if writer.stage(node) == stage]
        added = [(name, writer.names[node]) for name, node in summed if writer.stage(node) == stage]
        lines += [
            "    for (int64_t at = i, k = 0; at < end; at += LANES, k++) {",
            *(f"      const {vector} x{i} = get<DENSE>(p{i}, at, s{i});" for vector, i in read),
            *(f"      {line}" for line in writer.lines(stage)),
            *([f"      {line}" for line in guards.lines(writer, stage)] if guards else []),
            *(f"      store(q{i} + at, {writer.names[node]});" for i, node in done),
            *(f"      of_tile_{t} = of_tile_{t} + {value};" for t, value in added if t in partial),
            *(f"      store({c} + at, load({c} + at) + {value});" for c, value in added if c not in partial),
            "    }",
        ]
    lines += [f"    sum_{t} = sum_{t} + wide(of_tile_{t});" for t, _ in tiles]
    lines += [f"    {line}" for line in guards.end()] if guards else []
    return [*lines, "  }", *(f"  store({t}, sum_{t});" for t in partial), "}"]


def _rest(stored: Sequence[str], results: Sequence[str], added_to: Mapping[str, str]) -> list[str]:
    """Return the function for the columns that do not fill a vector, computed as one padded vector."""
    padded = [f"const Padded<{t}> x{i}(p{i}, s{i}, n);" for i, t in enumerate(stored)]
    made = [f"Padded<{t}> y{i};" for i, t in enumerate(results)]
    made += [f"{t} of_{name}[LANES] = {{}};" for name, t in added_to.items()]
    given = [*(f"x{i}.kept, 1" for i in range(len(stored))), *(f"y{i}.kept" for i in range(len(results)))]
    given += [f"of_{name}" for name in added_to]
    return [
        f"static void rest({_parameters(stored, results, added_to)}) {{",
        *(f"  {line}" for line in (*padded, *made)),
        f"  span<true>(LANES, {', '.join(given)});",
        *(f"  y{i}.put(q{i}, n);" for i in range(len(results))),
        *(f"  for (int64_t i = 0; i < n; i++) {name}[i] += of_{name}[i];" for name in added_to),
        "}",
    ]


def _run(region: Region, stored: Sequence[str], results: Sequence[str]) -> list[str]:
    """Return the exported function: the loop over rows and blocks of columns, threaded if it is long."""
    added_to = _added_to(region)
    parameters = [f"{_pointer(t, 'const ')} p{i}" for i, t in enumerate(stored)]
    parameters += [f"{_pointer(t)} q{i}" for i, t in enumerate(results)]
    parameters += [f"{lowerings.STORED[value_of(node).dtype]}* r{i}" for i, node in enumerate(region.every_sum)]
    parameters += ["const int64_t* steps, int64_t rows, int64_t columns"]
    parameters += ["int64_t period"] if region.column_sums else []
    n, m = range(len(stored)), range(len(results))
    given = ", ".join([*(f"a{i}, s{i}" for i in n), *(f"b{i}" for i in m), *added_to])
    rest = [*(f"a{i} + whole * s{i}, s{i}" for i in n), *(f"b{i} + whole" for i in m)]
    rest += [
        name if node in region.sums else f"{name} + whole"
        for name, node in zip(added_to, region.every_sum, strict=True)
    ]
    return [
        f'extern "C" void run({", ".join(parameters)}) {{',
        *(f"  huge(q{i}, rows * columns);" for i, node in enumerate(region.stored) if node not in region.bits),
        "  const int64_t blocks = (columns + BLOCK - 1) / BLOCK;",
        *(f"  const int64_t s{i} = steps ? steps[{2 * i + 1}] : 1;" for i in n),
        f"  auto work = [=]({', '.join(['int64_t item', *(f'{t}* {name}' for name, t in added_to.items())])}) {{",
        "    const int64_t r = item / blocks, c = item % blocks * BLOCK, at = r * columns + c;",
        "    const int64_t count = columns - c < BLOCK ? columns - c : BLOCK, whole = count / LANES * LANES;",
        *(f"    const auto a{i} = p{i} + (steps ? r * steps[{2 * i}] + c * s{i} : at);" for i in n),
        *(f"    const auto b{i} = q{i} + at;" for i in m),
        f"    steps ? span<false>(whole, {given}) : span<true>(whole, {given});",
        f"    if (whole < count) rest(count - whole, {', '.join(rest)});",
        "  };",
        *(f"  {line}" for line in (over_sums(region.sums, region.column_sums) if region.every_sum else _OVER)),
        "}",
    ]


_OVER = ("over(rows * blocks, rows * columns, work);",)


class RecomputeGuards:
    """Writes the guard lines, for a region without sums and bits.

    A doubtful vector is noted with its operands before its results are stored, which may overwrite them. It is
    recomputed after the loop, since compilers keep nothing in registers across a call.
    """

    def __init__(self, region: Region, short: ReducedRegion) -> None:
        self._region, self._short = region, short
        self._given = [(f"x{i}", vector_of(node)) for i, node in enumerate(region.inputs)]
        self._started = False

    def recomputation(self) -> list[str]:
        """Return the record of a noted vector, and the function that recomputes it."""
        region = self._region
        writer = Writer(
            region.pointwise, region.stored, dict(zip(region.inputs, self._of("x"), strict=True)), region.exact
        )
        results = [lowerings.STORED[value_of(node).dtype] for node in region.stored]
        given = [*(f"{vector} {x}" for x, vector in self._given), *(f"{t}* q{i}" for i, t in enumerate(results))]
        return [
            f"struct Doubtful {{ {' '.join(f'{vector} {x};' for x, vector in self._given)} int64_t at; }};",
            f"__attribute__((noinline, cold)) static void recompute({', '.join(given)}) {{",
            *(f"  {line}" for line in writer.lines()),
            *(f"  store(q{i}, {writer.names[node]});" for i, node in enumerate(region.stored)),
            "}",
            "",
        ]

    def arrays(self) -> list[str]:
        """Return the declarations of a tile's notes."""
        return ["M doubtful[TILE];", "Doubtful noted[TILE];", "int64_t doubts = 0;"]

    def lines(self, writer: Writer, stage: int) -> list[str]:
        """Return the lines of one loop before its stores."""
        share = 2.0**-self._short.bits
        losses = [
            f"lost({writer.names[sum_]}, {writer.names[term]}, {share!r})"
            for sum_, term in self._short.guards.items()
            if writer.stage(sum_) == stage
        ]
        lines = []
        if losses:
            lines.append(f"doubtful[k] = {' | '.join([*(['doubtful[k]'] if self._started else []), *losses])};")
            self._started = True
        if stage == writer.count - 1:
            noted = [f"get<DENSE>(p{i}, at, s{i})" for i in range(len(self._given))]
            lines.append(
                f"if (__builtin_expect(any(doubtful[k]), 0)) noted[doubts++] = {{{', '.join([*noted, 'at'])}}};"
            )
        return lines

    def end(self) -> list[str]:
        """Return the lines after the loops over a tile."""
        given = [*(f"one.{x}" for x in self._of("x")), *(f"q{i} + one.at" for i in range(len(self._region.stored)))]
        return [
            "while (doubts) {",
            "  const Doubtful& one = noted[--doubts];",
            f"  recompute({', '.join(given)});",
            "}",
        ]

    def _of(self, prefix: str) -> list[str]:
        return [f"{prefix}{i}" for i in range(len(self._region.inputs))]
