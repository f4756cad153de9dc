"""A graph as statements: a value used once is inlined, a value used twice gets a name."""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pullback.errors import FormulaError
from pullback.ops.registry import BY_ATEN
from pullback.write.expressions import (
    ATOM,
    Expression,
    PrintContext,
    expression_of,
    is_constant,
    number,
    op_name,
    sequence,
)
from pullback.write.graphs import dependencies, is_size, use_counts

_WIDTH = 72
"""Longest expression; a longer one has a part that gets a name."""
_RESULT_WIDTH = 60
"""The same for a returned expression, which has more text around it."""
_SHORT = 12
"""An expression up to this length never gets a name."""


class StatementPrinter:
    """Prints the statements that compute nodes from named ones.

    Args:
        known: names of the available nodes.
        names: source of new names.
        dtype: dtype of the example.
        like: the name of an available tensor, for its dtype and device.
        shapes: expressions for the shapes of inputs whose values are not available.

    Attributes:
        known: names of the nodes available so far.
    """

    def __init__(
        self,
        known: dict[fx.Node, str],
        names: Namespace,
        dtype: torch.dtype,
        like: str,
        shapes: dict[fx.Node, str] | None = None,
    ) -> None:
        self._lines: list[str] = []
        self.known = dict(known)
        self._names = names
        self._inlined: dict[fx.Node, Expression] = {}
        self._shapes = shapes or {}
        self._context = PrintContext(dtype, like, self.show)

    def compute(
        self, wanted: Sequence[fx.Node], uses: Mapping[fx.Node, int] | None = None, named: Collection[fx.Node] = ()
    ) -> None:
        """Print the missing statements for some nodes.

        Args:
            wanted: the nodes.
            uses: number of uses of each value, where there are others than for the wanted nodes.
            named: nodes that get names, however often they are used.
        """
        uses = use_counts(wanted, self.known) if uses is None else uses
        for node in dependencies(wanted, {*self.known, *self._inlined, *self._shapes}):
            text = self._fitting(node, wanted)
            once = uses.get(node, 0) <= 1 or is_size(node) or text.text.isidentifier()
            fits = len(text.text) <= _WIDTH or node in wanted
            if is_constant(node) or (node not in named and once and fits):
                self._inlined[node] = text
            else:
                self._assign(node, text)

    def flush(self) -> list[str]:
        """Return the lines printed since the last call."""
        lines, self._lines = self._lines, []
        return lines

    def show(self, value: Any) -> Expression:
        """An argument of an op as an expression."""
        if isinstance(value, fx.Node):
            if value in self.known:
                return Expression(self.known[value])
            return self._inlined[value]
        if isinstance(value, list | tuple | torch.Size):
            return self._whole_shape(value) or sequence(value, self._context)
        if isinstance(value, bool | str) or value is None:
            return Expression(repr(value))
        if isinstance(value, int | float | complex):
            return number(value)
        if isinstance(value, torch.dtype):
            return Expression(self._context.dtype_of(value))
        if isinstance(value, torch.memory_format | torch.layout):
            return Expression(str(value))
        raise FormulaError(f"it uses {value!r}, which has no form in Python.")

    def _fitting(self, node: fx.Node, results: Collection[fx.Node]) -> Expression:
        """A node as an expression; while that is too long, its longest operand gets a name."""
        while True:
            text = self._expression(node)
            operands = [
                a
                for a in node.all_input_nodes
                if a in self._inlined and len(self._inlined[a].text) > _SHORT and not is_constant(a)
            ]
            if len(text.text) <= (_WIDTH if node not in results else _RESULT_WIDTH) or not operands:
                return text
            longest = max(operands, key=lambda a: len(self._inlined[a].text))
            self._assign(longest, self._inlined.pop(longest))

    def _assign(self, node: fx.Node, text: Expression) -> None:
        name = self._names.name_of(node, self.known)
        self._lines.append(f"{name} = {text.text}")
        self.known[node] = name

    def _expression(self, node: fx.Node) -> Expression:
        if node.op == "get_attr":
            return _constant(node)
        if is_size(node) and node.args[0] in self._shapes:
            shape = self._shapes[node.args[0]]  # type: ignore[index]
            return Expression(f"{shape}[{node.args[1]}]" if op_name(node) == "sym_size" else f"{shape}.numel()")
        return expression_of(node, self._context)

    def _whole_shape(self, sizes: Sequence[Any]) -> Expression | None:
        """The shape of an input, if these are its sizes in order."""
        if not sizes or not isinstance(sizes[0], fx.Node) or op_name(sizes[0]) != "sym_size":
            return None
        source: Any = sizes[0].args[0]
        if len(sizes) != source.meta["val"].dim():
            return None
        for i, size in enumerate(sizes):
            if not isinstance(size, fx.Node) or op_name(size) != "sym_size" or size.args != (source, i):
                return None
        return Expression(self._shapes[source] if source in self._shapes else f"{self.show(source).at(ATOM)}.shape")


def _constant(node: fx.Node) -> Expression:
    value: Any = getattr(node.graph.owning_module, str(node.target))
    if isinstance(value, Tensor) and value.dim() == 0:
        return number(value.item())
    raise FormulaError("it uses a tensor that is not an argument: pass it as one.")


@dataclass(frozen=True, slots=True)
class GradientSlot:
    """The gradient of one input in a backward of several.

    Attributes:
        node: the node that computes it.
        variable: the variable that holds it.
        position: position of the input among all arguments.
    """

    node: fx.Node
    variable: str
    position: int


def guarded_gradients(
    s: StatementPrinter, slots: Mapping[str, GradientSlot], reduced: Callable[[Expression, str], str], ctx: str = "ctx"
) -> tuple[list[str], dict[str, str]]:
    """Print the gradients of several inputs, each under `needs_input_grad`, after their common subexpressions.

    Args:
        s: the printer, with the names known so far.
        slots: the gradients, by the names of their inputs.
        reduced: maps a gradient as an expression, and the name of its input, to its text in the shape of the input.
        ctx: name of the context.

    Returns:
        The lines, and the gradients that are one expression, by the names of their inputs.
    """
    nodes, known = [slot.node for slot in slots.values()], list(s.known)
    uses, shared = use_counts(nodes, known), _shared(nodes, known)
    s.compute(shared, uses, shared)
    lines, single = s.flush(), {}
    without_shared = not lines
    lines.append(f"{' = '.join(slot.variable for slot in slots.values())} = None")
    for name, slot in slots.items():
        s.compute([slot.node], uses)
        before, gradient = s.flush(), s.show(slot.node)
        if without_shared and not before:
            single[name] = gradient.text
        lines.append(f"if {ctx}.needs_input_grad[{slot.position}]:")
        lines += [f"    {line}" for line in (*before, f"{slot.variable} = {reduced(gradient, name)}")]
    return lines, single


def _shared(results: Sequence[fx.Node], known: Sequence[fx.Node]) -> list[fx.Node]:
    """Nodes that more than one result depends on: the last ones, which the other computations use."""
    counts: dict[fx.Node, int] = {}
    for result in results:
        for node in dependencies([result], known):
            counts[node] = counts.get(node, 0) + 1
    common = {node for node, n in counts.items() if n > 1 and not is_size(node)}
    return [
        node
        for node in dependencies(results, known)
        if node in common and (node in results or any(user in counts and user not in common for user in node.users))
    ]


_NOUNS = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot"), "product"),
    **dict.fromkeys(("amax", "max"), "largest"),
    **dict.fromkeys(("amin", "min"), "smallest"),
    **dict.fromkeys(("index", "index_select", "gather"), "picked"),
    "sum": "total",
    "linalg_vector_norm": "norm",
    "var": "variance",
    "std": "deviation",
    "_softmax": "shares",
    "_log_softmax": "logs",
    "view": "reshaped",
    "t": "transposed",
    "getitem": "part",
}
"""Names of the results of ops that have no record; others are named after the op."""


class Namespace:
    """Source of unique names for intermediate values."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = {"torch", "F", "ctx", "inputs", "output", *taken, *keyword.kwlist, *dir(builtins)}

    def name_of(self, node: fx.Node, known: Mapping[fx.Node, str]) -> str:
        """A new name for the value of a node, after its op, and after its operand's name where that tells more."""
        op = op_name(node)
        noun = BY_ATEN[op].noun if op in BY_ATEN else _NOUNS.get(op)
        noun = noun or op.strip("_").removeprefix("special_").removeprefix("linalg_")
        first = node.args[0] if node.args else None
        operand = known.get(first, "") if isinstance(first, fx.Node) else ""
        return self.fresh(noun.format(operand) if operand.isidentifier() else noun.removesuffix("_{}"))

    def fresh(self, hint: str) -> str:
        """The name itself, with a number if it is taken."""
        name, number = hint, 1
        while name in self._taken:
            number += 1
            name = f"{hint}_{number}"
        self._taken.add(name)
        return name
