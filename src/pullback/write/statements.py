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
from pullback.write.expressions import ATOM, Context, Text, number, op_name, sequence
from pullback.write.graphs import dependencies, is_size, use_counts
from pullback.write.special import is_constant
from pullback.write.spelling import spelled

_WIDTH = 72
"""How long an expression may become before a part of it gets a name."""
_LAST = 60
"""The same for a returned expression, which has more text around it."""
_SHORT = 12
"""An expression up to this length never gets a name."""


class StatementPrinter:
    """Writes the statements that compute nodes from named ones.

    Args:
        known: names of the available nodes.
        names: returns new names.
        dtype: of the example.
        like: the name of an available tensor.
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
        self._texts: dict[fx.Node, Text] = {}
        self._shapes = shapes or {}
        self._context = Context(dtype, like, self.show)

    def compute(self, wanted: Iterable[fx.Node], uses: dict[fx.Node, int], named: Iterable[fx.Node] = ()) -> None:
        """Write the missing statements for some nodes; those in `named` get names."""
        with_names, finals = set(named), set(wanted)
        for node in dependencies(wanted, {*self.known, *self._texts, *self._shapes}):
            text = self._fitting(node, finals)
            once = uses.get(node, 0) <= 1 or is_size(node) or text.text.isidentifier()
            if is_constant(node) or (node not in with_names and once and (len(text.text) <= _WIDTH or node in finals)):
                self._texts[node] = text
            else:
                self._name(node, text)

    def _fitting(self, node: fx.Node, finals: Collection[fx.Node]) -> Text:
        """Return a node as text, with names for its longest operands where it is too long."""
        while True:
            text = self._spelled(node)
            operands = [
                a
                for a in node.all_input_nodes
                if a in self._texts and len(self._texts[a].text) > _SHORT and not is_constant(a)
            ]
            if len(text.text) <= (_WIDTH if node not in finals else _LAST) or not operands:
                return text
            longest = max(operands, key=lambda a: len(self._texts[a].text))
            self._name(longest, self._texts.pop(longest))

    def take(self) -> list[str]:
        """Return the lines since the last time."""
        lines, self._lines = self._lines, []
        return lines

    def _name(self, node: fx.Node, text: Text) -> None:
        name = self._names.of(node, self.known)
        self._lines.append(f"{name} = {text.text}")
        self.known[node] = name

    def show(self, value: Any) -> Text:
        """Return an argument of an op as text."""
        if isinstance(value, fx.Node):
            if value in self.known:
                return Text(self.known[value])
            return self._texts[value]
        if isinstance(value, list | tuple | torch.Size):
            whole = self._whole_shape(value)
            return whole or sequence(value, self._context)
        if isinstance(value, bool | str) or value is None:
            return Text(repr(value))
        if isinstance(value, int | float | complex):
            return number(value)
        if isinstance(value, torch.dtype):
            return Text(self._context.dtype_of(value))
        if isinstance(value, torch.memory_format | torch.layout):
            return Text(str(value))
        raise FormulaError(f"it uses {value!r}, which has no form to read.")

    def _spelled(self, node: fx.Node) -> Text:
        if node.op == "get_attr":
            return _constant(node)
        if op_name(node) == "sym_size" and node.args[0] in self._shapes:
            return Text(f"{self._shapes[node.args[0]]}[{node.args[1]}]")  # type: ignore[index]
        if op_name(node) == "sym_numel" and node.args[0] in self._shapes:
            return Text(f"{self._shapes[node.args[0]]}.numel()")  # type: ignore[index]
        return spelled(node, self._context)

    def _whole_shape(self, sizes: Sequence[Any]) -> Text | None:
        """Return the shape of an input, if these are its sizes."""
        if not sizes or not isinstance(sizes[0], fx.Node) or op_name(sizes[0]) != "sym_size":
            return None
        of: Any = sizes[0].args[0]
        if len(sizes) != of.meta["val"].dim():
            return None
        for i, size in enumerate(sizes):
            if not isinstance(size, fx.Node) or op_name(size) != "sym_size" or size.args != (of, i):
                return None
        return Text(self._shapes[of]) if of in self._shapes else Text(f"{self.show(of).at(ATOM)}.shape")


def _constant(node: fx.Node) -> Text:
    value: Any = getattr(node.graph.owning_module, str(node.target))
    if isinstance(value, Tensor) and value.dim() == 0:
        return number(value.item())
    raise FormulaError("it uses a tensor that is not an argument: pass it as one.")


@dataclass(frozen=True, slots=True)
class GradientSlot:
    """Where one gradient goes.

    Attributes:
        node: that computes it.
        variable: that holds it.
        position: of its input among all arguments.
    """

    node: fx.Node
    variable: str
    position: int


def guarded_gradients(
    s: StatementPrinter, slots: Mapping[str, GradientSlot], reduced: Callable[[Text, str], str], ctx: str = "ctx"
) -> tuple[list[str], dict[str, str]]:
    """Return the lines that compute each wanted gradient, after their common subexpressions.

    Args:
        s: the statements, with the names known so far.
        slots: of the gradients, by the names of their inputs.
        reduced: maps a gradient as text, and the name of its input, to its text in the shape of the input.
        ctx: name of the context.

    Returns:
        The lines, and the gradients that are one expression, by the names of their inputs.
    """
    nodes, known = [slot.node for slot in slots.values()], list(s.known)
    uses, shared = use_counts(nodes, known), _shared(nodes, known)
    s.compute(shared, uses, shared)
    lines, short = s.take(), {}
    plain = not lines
    lines.append(f"{' = '.join(slot.variable for slot in slots.values())} = None")
    for name, slot in slots.items():
        s.compute([slot.node], uses)
        before, gradient = s.take(), s.show(slot.node)
        if plain and not before:
            short[name] = gradient.text
        lines.append(f"if {ctx}.needs_input_grad[{slot.position}]:")
        lines += [f"    {line}" for line in (*before, f"{slot.variable} = {reduced(gradient, name)}")]
    return lines, short


def _shared(results: Sequence[fx.Node], known: Sequence[fx.Node]) -> list[fx.Node]:
    """Return the nodes that more than one result needs, those that are read beyond the shared part."""
    counts: dict[fx.Node, int] = {}
    for result in dict.fromkeys(results):
        for node in dependencies([result], known):
            counts[node] = counts.get(node, 0) + 1
    common = {node for node, n in counts.items() if n > 1 and not is_size(node)}
    return [
        node
        for node in dependencies(results, known)
        if node in common and (node in results or any(user in counts and user not in common for user in node.users))
    ]


_HINTS = {
    "mul": "product",
    "div": "ratio",
    "add": "total",
    "sub": "difference",
    "rsub": "rest",
    "neg": "negated",
    "pow": "power",
    "mm": "product",
    "bmm": "product",
    "mv": "product",
    "dot": "product",
    "sum": "total",
    "amax": "largest",
    "amin": "smallest",
    "max": "largest",
    "min": "smallest",
    "rsqrt": "inverse_root",
    "sqrt": "root",
    "reciprocal": "inverse",
    "sigmoid": "gate",
    "linalg_vector_norm": "norm",
    "var": "variance",
    "std": "deviation",
    "where": "chosen",
    "masked_fill": "filled",
    "index": "picked",
    "index_select": "picked",
    "gather": "picked",
    "gt": "above",
    "ge": "above",
    "lt": "below",
    "le": "below",
    "eq": "same",
    "ne": "other",
    "_to_copy": "wide",
    "_softmax": "shares",
    "_log_softmax": "logs",
    "view": "reshaped",
    "t": "transposed",
    "detach": "fixed",
    "abs": "size",
    "getitem": "part",
}
_WORDS = """
    exp log log1p expm1 sin cos tan tanh erf cosh sinh abs sigmoid isfinite isnan _to_copy detach
"""
_ABOUT = frozenset(_WORDS.split())
"""Ops whose results are named after their operands."""


class Namespace:
    """Gives each value a unique name."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = {"torch", "F", "ctx", "inputs", "output", *taken, *keyword.kwlist, *dir(builtins)}

    def of(self, node: fx.Node, known: dict[fx.Node, str]) -> str:
        """Return a new name for the value of a node."""
        op = op_name(node)
        hint = _HINTS.get(op, op.strip("_").removeprefix("special_").removeprefix("linalg_"))
        first = node.args[0] if node.args else None
        if op in _ABOUT and isinstance(first, fx.Node) and known.get(first, "").isidentifier():
            hint = f"{hint}_{known[first]}"
        return self.fresh(hint)

    def fresh(self, hint: str) -> str:
        """Return a hint, with a number if it is taken."""
        name, number = hint, 1
        while name in self._taken:
            number += 1
            name = f"{hint}_{number}"
        self._taken.add(name)
        return name
