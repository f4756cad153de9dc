"""A region as a Triton kernel: Python source that needs nothing but Triton.

Each element is computed as the C++ of `source` has it, in the same order and with the same roundings; of a choice both
sides are.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

import torch
from torch import fx

from pullback.kernels.regions import Region, value_of
from pullback.kernels.writer import BranchAssignment, Writer

_NARROW = {torch.bfloat16: "tl.bfloat16", torch.float16: "tl.float16"}


def triton_source_of(region: Region) -> str:
    """Return the source of a region; `run` is its kernel.

    `run` takes the inputs and outputs, then for each input its strides over rows and over columns, in elements, then
    the numbers of columns and elements. Its constants are DENSE: each input is as dense as the outputs, and strides are
    unused;
    WIDE: indices take 64 bits; BLOCK: number of elements per program.
    """
    n, m = range(len(region.inputs)), range(len(region.outputs))
    names = {node: f"x{i}" for i, node in enumerate(region.inputs)}
    writer = _TritonWriter(region.nodes, region.outputs, names, region.exact)
    parameters = [*(f"p{i}" for i in n), *(f"q{i}" for i in m), *(f"r{i}, c{i}" for i in n), "columns, total"]
    constants = ", ".join(f"{name}: tl.constexpr" for name in ("DENSE", "WIDE", "BLOCK"))
    lines = [
        f"def run({', '.join(parameters)}, {constants}):",
        "    block = tl.program_id(0)",
        "    if WIDE:",
        "        block = block.to(tl.int64)",
        "    at = block * BLOCK + tl.arange(0, BLOCK)",
        "    on = at < total",
        "    row, column = at // columns, at % columns",
        *(f"    x{i} = {_loaded(i, node)}" for i, node in enumerate(region.inputs)),
        *(f"    {line}" for line in writer.lines()),
        *(f"    tl.store(q{i} + at, {_narrowed(writer.names[y], y)}, mask=on)" for i, y in enumerate(region.outputs)),
    ]
    text = "\n".join(lines)
    return "\n\n\n".join([*_preamble(text), f"@triton.jit\n{text}\n"])


class _TritonWriter(Writer):
    """Writes the lines of one program, on blocks of elements."""

    def _divided(self, nodes: Sequence[fx.Node], outputs: Collection[fx.Node]) -> BranchAssignment:
        return BranchAssignment.undivided(nodes)

    def _defined(self, node: fx.Node, text: str) -> str:
        return f"{self.names[node]} = {text}"


def _loaded(i: int, node: fx.Node) -> str:
    text = f"tl.load(p{i} + (at if DENSE else row * r{i} + column * c{i}), mask=on)"
    return f"{text}.to(tl.float32)" if value_of(node).dtype in _NARROW else text


def _narrowed(name: str, node: fx.Node) -> str:
    narrow = _NARROW.get(value_of(node).dtype)
    return f"{name}.to({narrow})" if narrow else name


def _preamble(text: str) -> list[str]:
    """Return the imports, and the functions that some source calls, in their order in `functions.py`."""
    parts = _parts()
    needed: set[str] = set()
    stack = list(_names_in(ast.parse(text)))
    while stack:
        name = stack.pop()
        if name in parts and name not in needed:
            needed.add(name)
            stack += parts[name].reads
    imports = [parts[name].text for name in parts if name in needed and parts[name].is_import]
    return [
        "\n".join(["import triton", "import triton.language as tl", *imports]),
        *(part.text for name, part in parts.items() if name in needed and not part.is_import),
    ]


@dataclass(frozen=True, slots=True)
class _Part:
    """A top-level definition of `functions.py`: its source, and the names that it reads."""

    text: str
    reads: tuple[str, ...] = ()
    is_import: bool = False


@functools.cache
def _parts() -> dict[str, _Part]:
    found: dict[str, _Part] = {}
    source = (resources.files("pullback.kernels") / "include" / "functions.py").read_text(encoding="utf-8")
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.FunctionDef):
            text = "\n".join(["@triton.jit", str(ast.get_source_segment(source, statement))])
            found[statement.name] = _Part(text, tuple(_names_in(statement)))
        elif isinstance(statement, ast.Assign):
            found[ast.unparse(statement.targets[0])] = _Part(ast.unparse(statement))
        elif isinstance(statement, ast.ImportFrom) and str(statement.module).startswith("triton."):
            for alias in statement.names:
                line = ast.unparse(ast.ImportFrom(statement.module, [alias], 0))
                found[alias.asname or alias.name] = _Part(line, is_import=True)
    return found


def _names_in(tree: ast.AST) -> Iterator[str]:
    return (node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
