"""The lines of a kernel by which vectors that short functions are not good enough for are computed again."""

from __future__ import annotations

from pullback.kernels import lowerings
from pullback.kernels.regions import Region, value_of
from pullback.kernels.short import Short
from pullback.kernels.writer import Writer, vector_of


class Guards:
    """Writes the guard lines, for a region without sums and bits.

    A doubtful vector is noted with its operands before its results are stored, which may overwrite them. It is
    recomputed after the loop, since compilers keep nothing in registers across a call.
    """

    def __init__(self, region: Region, short: Short) -> None:
        self._region, self._short = region, short
        self._given = [(f"x{i}", vector_of(node)) for i, node in enumerate(region.inputs)]
        self._started = False

    def again(self) -> list[str]:
        """Return the record of a noted vector, and the function that recomputes it."""
        region = self._region
        writer = Writer(
            region.pointwise, region.stored, dict(zip(region.inputs, self._of("x"), strict=True)), region.exact
        )
        results = [lowerings.STORED[value_of(node).dtype] for node in region.stored]
        given = [*(f"{vector} {x}" for x, vector in self._given), *(f"{t}* q{i}" for i, t in enumerate(results))]
        return [
            f"struct Noted {{ {' '.join(f'{vector} {x};' for x, vector in self._given)} int64_t at; }};",
            f"__attribute__((noinline, cold)) static void again({', '.join(given)}) {{",
            *(f"  {line}" for line in writer.lines()),
            *(f"  store(q{i}, {writer.names[node]});" for i, node in enumerate(region.stored)),
            "}",
            "",
        ]

    def arrays(self) -> list[str]:
        """Return the declarations of a tile's notes."""
        return ["M doubtful[TILE];", "Noted noted[TILE];", "int64_t doubts = 0;"]

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
        return ["while (doubts) {", "  const Noted& one = noted[--doubts];", f"  again({', '.join(given)});", "}"]

    def _of(self, prefix: str) -> list[str]:
        return [f"{prefix}{i}" for i in range(len(self._region.inputs))]
