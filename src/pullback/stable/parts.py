"""A formula that is not pointwise, cut at its reductions, matrix products and views into its pointwise parts.

A node of its graph is pointwise if its ATen ops are in the table of pointwise ops, on tensors of one dtype. Whether a
whole part has a meaning as a formula is decided by `meaning_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.errors import FormulaError, PullbackError
from pullback.ops.constants import VALUES
from pullback.ops.registry import BY_ATEN, CONDITIONS
from pullback.stable.meant import Meaning, meaning_of
from pullback.stable.recording import examples, function_of, ops_of, recorded, variables_of
from pullback.stable.term import Term, topological
from pullback.stable.written import as_written

_MOST_INPUTS = 3
_PLAIN = CONDITIONS | {"mul", "div", "neg", "abs", "sgn", "maximum", "minimum", "relu", "where", "floor", "ceil"}
"""Ops without room for improvement, alone or in sequence."""
_SUMS = frozenset({"add", "sub"})
_ROOTS = frozenset({"sqrt", "rsqrt"})


@dataclass(frozen=True, slots=True)
class Part:
    """A pointwise part of a formula.

    Attributes:
        function: of the part's inputs, as written.
        inputs: the nodes of these inputs.
        root: the node that it computes.
        meaning: its term and the names of the inputs.
    """

    function: Callable[..., Tensor]
    inputs: tuple[fx.Node, ...]
    root: fx.Node
    meaning: Meaning


class Cut:
    """A formula of tensors as a graph of PyTorch's functions, with its pointwise nodes.

    It may replace the formula if `is_meant` is true.
    """

    def __init__(self, formula: Callable[..., Any]) -> None:
        """Record a formula.

        Raises:
            FormulaError: if it cannot be recorded for all shapes.
        """
        self.name: str = getattr(formula, "__name__", type(formula).__name__)
        self._formula = formula
        self.variables = variables_of(formula, self.name)
        self.graph = recorded(formula, self.variables, self.name)
        self.pointwise = [node for node in self.graph.nodes if node.op.startswith("call")]
        self._taken = list(examples(function_of(self.graph), self.arity))
        if not self._taken:
            raise FormulaError(f"{self.name} takes no float tensors of one shape, by which its parts could be told")
        for tensors in self._taken:
            there = _pointwise(self.graph, tensors)
            self.pointwise = [node for node in self.pointwise if node in there]

    def is_meant(self) -> bool:
        """Whether the graph computes the formula and its gradient. The check takes some tenths of a second."""
        made = function_of(self.graph)
        pairs = [(ops_of(made, tensors), ops_of(self._formula, tensors)) for tensors in self._taken]
        return all(ours == theirs for ours, theirs in pairs) and any(theirs for _, theirs in pairs)

    def require_meant(self) -> None:
        """Refuse a graph that does not compute the formula.

        Raises:
            FormulaError: if it does not.
        """
        if not self.is_meant():
            raise FormulaError(
                f"{self.name} does what a graph of its functions does not show: it stops gradients, writes in place, "
                "draws numbers, or asks what its inputs are"
            )

    @property
    def arity(self) -> int:
        """How many tensors the formula takes."""
        return len(self.variables)

    def parts(self, dtype: torch.dtype) -> list[Part]:
        """Return the pointwise parts of up to three inputs that a search may improve, each as large as it can be."""
        found: list[Part] = []
        inside = set(self.pointwise)
        waiting = [n for n in self.pointwise if any(user not in inside for user in n.users)]
        seen = set(waiting)
        while waiting:
            root = waiting.pop(0)
            nodes, inputs = self._cone(root)
            part = self._part(root, nodes, inputs, dtype, len(found) + 1)
            if part is not None and _may_gain(part.meaning.term):
                found.append(part)
            # Without a part the root stays as written, and parts may end at its operands.
            more = [n for n in (root.all_input_nodes if part is None else inputs) if n in inside and n not in seen]
            seen.update(more)
            waiting += more
        return found

    def _cone(self, root: fx.Node) -> tuple[set[fx.Node], tuple[fx.Node, ...]]:
        """Return the pointwise nodes that a node is computed by, with it, and the inputs of these.

        Where there are more than two inputs, and all that comes of them passes through one value, that is the only
        input: a search in one variable takes seconds, one in three may take minutes.
        """
        nodes, inputs = self._reaching(root, None)
        if len(inputs) > 2:
            for waist in self.pointwise:
                if waist in nodes and waist is not root:
                    fewer = self._reaching(root, waist)
                    if fewer[1] == (waist,):
                        return fewer
        return nodes, inputs

    def _reaching(self, root: fx.Node, end: fx.Node | None) -> tuple[set[fx.Node], tuple[fx.Node, ...]]:
        inside, nodes = set(self.pointwise) - {end}, {root}
        for node in reversed(self.graph.nodes):
            if node in nodes:
                nodes.update(n for n in node.all_input_nodes if n in inside)
        return nodes, tuple(n for n in self.graph.nodes if n not in nodes and any(u in nodes for u in n.users))

    def _part(
        self, root: fx.Node, nodes: set[fx.Node], inputs: tuple[fx.Node, ...], dtype: torch.dtype, number: int
    ) -> Part | None:
        if not 1 <= len(inputs) <= _MOST_INPUTS:
            return None
        graph = fx.Graph()
        copies = {n: graph.placeholder(f"{n.name}_in" if n.name in VALUES else n.name) for n in inputs}
        for node in self.graph.nodes:
            if node in nodes:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(copies[root])
        function = function_of(graph)
        try:
            meaning = meaning_of(function, dtype)
        except PullbackError:
            return None
        text = str(meaning.term)
        function.__name__ = f"{self.name}, part {number}: {text if len(text) <= 60 else text[:59] + '…'}"
        return Part(function, inputs, root, meaning)


def _pointwise(graph: fx.Graph, tensors: Sequence[Tensor]) -> dict[fx.Node, Any]:
    """Run a graph; return its nodes that are pointwise in tensors of one dtype."""
    given = iter(tensors)
    values: dict[fx.Node, Any] = {}
    found = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = next(given)
        elif node.op == "output":
            break
        else:
            values[node], ops = _run(node, values)
            if _is_pointwise(values[node], [values[n] for n in node.all_input_nodes], ops, tensors[0].dtype):
                found[node] = values[node]
    return found


def _run(node: fx.Node, values: dict[fx.Node, Any]) -> tuple[Any, list[Any]]:
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    function: Any = node.target
    with as_written(), _Called() as called:
        result = (
            getattr(args[0], function)(*args[1:], **kwargs) if node.op == "call_method" else function(*args, **kwargs)
        )
    return result, called.ops


class _Called(_torch.DispatchMode):
    """Notes the ATen ops that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


def _is_pointwise(out: Any, given: Sequence[Any], ops: Sequence[Any], dtype: torch.dtype) -> bool:
    if not given or not all(isinstance(t, Tensor) and t.dtype in (dtype, torch.bool) for t in (out, *given)):
        return False
    names = [_torch.op_name(op).partition("::")[2].partition(".")[0] for op in ops]
    if (
        not names
        or not all(name in BY_ATEN and BY_ATEN[name].is_readable for name in names)
        or "detach" in names
        or any(map(_torch.is_mutable, ops))
    ):
        return False
    shape = torch.broadcast_shapes(*(t.shape for t in given))
    return out.shape == shape and all(out is not t for t in given)


def _may_gain(term: Term) -> bool:
    """Whether anything can be wrong with a term: not with products and roots of one sum."""
    terms = [t for t in topological([term]) if t.args]
    if any(t.op not in _PLAIN | _SUMS | _ROOTS for t in terms) or sum(t.op in _SUMS for t in terms) > 1:
        return True
    # the square beneath a root overflows long before the root
    return any(below.op in ("mul", "div") for t in terms if t.op in _ROOTS for below in topological(t.args))
