"""The value, the vjp and the jvp of a definition as graphs of ATen ops with symbolic sizes.

Unlike the graphs that run, these hold for all sizes, and PyTorch's fused backward ops are decomposed: autograd alone
has to be able to differentiate the written code.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.dtypes import has_derivative
from pullback.errors import FormulaError
from pullback.graph.functional import functionalise
from pullback.graph.joint import simplify
from pullback.write.apart import APART
from pullback.write.definition import Definition
from pullback.write.views import drop_returns


@dataclass(slots=True)
class Graph:
    """A graph of a formula together with its vjp or jvp.

    Attributes:
        module: of ATen ops.
        inputs: nodes of the formula's tensors.
        given: nodes of the cotangents, or of the tangents.
        outputs: nodes of the value; `None` for a result that is no tensor.
        results: nodes of the gradients of `wanted`, or of the tangents of the outputs; `None` where there is none.
        guards: conditions on the sizes, as sympy expressions.
    """

    module: fx.GraphModule
    inputs: list[fx.Node]
    given: list[fx.Node]
    outputs: list[fx.Node]
    results: list[fx.Node | None]
    guards: list[Any] = field(default_factory=list)


def vjp_graph(d: Definition, tensors: Sequence[Tensor]) -> Graph:
    """Trace the value and the gradients of the wanted inputs.

    Raises:
        FormulaError: if it cannot be traced.
    """
    n = len(tensors)

    def both(*given: Tensor) -> Any:
        values, roots = d.run(given[:n])
        return values, d.pulled(roots, values, given[:n], given[n:])

    return _traced(both, [*(x.detach() for x in tensors), *d.cotangents(tensors)], n, d.name)


def jvp_graph(d: Definition, tensors: Sequence[Tensor]) -> Graph:
    """Trace the value and its tangents.

    Raises:
        FormulaError: if it cannot be traced, as where a backward has no derivative.
    """
    n = len(tensors)
    moved = [torch.empty_like(tensors[i]) for i in d.wanted]

    def both(*given: Tensor) -> Any:
        return d.pushed(given[:n], given[n:])

    return _traced(both, [*(x.detach() for x in tensors), *moved], n, d.name)


def elementwise_jvp(graph: Graph) -> Graph | None:
    """Return the tangent of an elementwise formula with one result, from its gradients.

    Its Jacobian is diagonal, so the tangent is the sum of the gradients, each with its input's tangent as the
    cotangent.
    """
    if len(graph.given) != 1 or len(graph.outputs) != 1:
        return None
    (g,) = graph.given
    new = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for node in graph.inputs:
        made[node] = with_meta(new.placeholder(node.name), node)
    tangents = [with_meta(new.placeholder(f"tangent_{i}"), g) for i in range(len(graph.results))]
    total: fx.Node | None = None
    moving = _descendants(g)
    for tangent, result in zip(tangents, graph.results, strict=True):
        if result is None:
            continue
        own = {g: tangent}
        for node in graph.module.graph.nodes:
            if node.op in ("placeholder", "output") or node in made:
                continue
            here = own if node in moving else made
            here[node] = with_meta(new.node_copy(node, lambda a, own=own: own[a] if a in own else made[a]), node)  # type: ignore[misc]
        found = own[result] if result in own else made[result]
        if total is not None:
            total = with_meta(new.call_function(torch.ops.aten.add.Tensor, (total, found)), graph.outputs[0])
        else:
            total = found
    outputs = [made[out] for out in graph.outputs]
    new.output([outputs, [total]])
    simplify(new)
    made_graph = Graph(fx.GraphModule(graph.module, new), [made[x] for x in graph.inputs], tangents, [], [])
    find_ends(made_graph)
    return made_graph


def with_meta(copy: fx.Node, node: fx.Node) -> fx.Node:
    """Return a copy of a node with its metadata."""
    copy.meta = dict(node.meta)
    return copy


def _descendants(node: fx.Node) -> set[fx.Node]:
    found: set[fx.Node] = set()
    stack = [node]
    while stack:
        one = stack.pop()
        if one not in found:
            found.add(one)
            stack += one.users
    return found


def _traced(function: Callable[..., Any], given: Sequence[Tensor], n: int, name: str) -> Graph:
    try:
        module = _torch.trace_symbolic(function, given, APART)
    except FormulaError:
        raise
    except Exception as error:  # any error of a formula on tensors without data
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise FormulaError(f"{name} cannot be written: it cannot be traced ({reason}).") from error
    placeholders = module.graph.find_nodes(op="placeholder")
    graph = Graph(module, placeholders[:n], placeholders[n:], [], [])
    find_ends(graph)
    _refuse(graph, name)
    _keep_stops(graph)
    drop_returns(module.graph)
    simplify(module.graph)
    find_ends(graph)
    graph.guards = _torch.shape_guards(module)
    return graph


def find_ends(graph: Graph) -> None:
    """Update the record of a graph's results."""
    returned: Any = graph.module.graph.output_node().args[0]
    values, results = returned
    graph.outputs = [v for v in values if isinstance(v, fx.Node)]
    graph.results = list(results)


def without_outputs(graph: Graph) -> None:
    """Have a graph return its results alone, for a backward that cannot have the outputs."""
    graph.module.graph.output_node().args = ([[], list(graph.results)],)
    simplify(graph.module.graph)
    find_ends(graph)


def _refuse(graph: Graph, name: str) -> None:
    """Refuse a graph that would not be the same function in writing."""
    written = functionalise(graph.module.graph)
    if written is not None:
        raise FormulaError(f"{name} cannot be written: it works in place ({written.target}).")
    for node in graph.module.graph.nodes:
        if node.op == "call_function" and torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise FormulaError(f"{name} cannot be written: it draws random numbers ({node.target}).")


def _keep_stops(graph: Graph) -> None:
    """Tell the formula's own detach from autograd's alias of a saved tensor: only the former leads to an output."""
    seen: set[fx.Node] = set()
    stack = list(graph.outputs)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        stack += node.all_input_nodes
        if node.target is torch.ops.aten.detach.default:
            node.target = torch.detach


def value_of(node: fx.Node) -> Any:
    """Return the traced value of a node: a tensor without data, or a size."""
    return node.meta.get("val")


def is_item(node: fx.Node) -> bool:
    """Whether a node is one of several results."""
    return node.target is operator.getitem


def is_differentiable(node: fx.Node) -> bool:
    """Whether the value of a node has a derivative."""
    value = value_of(node)
    return isinstance(value, Tensor) and has_derivative(value)
