"""The value, the vjp and the jvp of a definition as graphs of ATen ops with symbolic sizes.

Unlike the graphs that run, these hold for all sizes, and PyTorch's fused backward ops are decomposed: autograd alone
has to be able to differentiate the written code.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.dtypes import has_derivative
from pullback.errors import FormulaError
from pullback.graph.functional import functionalise
from pullback.graph.joint import simplify
from pullback.write.decompositions import DECOMPOSITIONS
from pullback.write.expressions import op_name
from pullback.write.spec import FunctionSpec


@dataclass(slots=True)
class DerivativeGraph:
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


def vjp_graph(d: FunctionSpec, tensors: Sequence[Tensor]) -> DerivativeGraph:
    """Trace the value and the gradients of the wanted inputs.

    Raises:
        FormulaError: if it cannot be traced.
    """
    n = len(tensors)

    def both(*given: Tensor) -> Any:
        values, roots = d.run(given[:n])
        return values, d.pulled(roots, values, given[:n], given[n:])

    return _traced(both, [*(x.detach() for x in tensors), *d.cotangents(tensors)], n, d.name)


def jvp_graph(d: FunctionSpec, tensors: Sequence[Tensor]) -> DerivativeGraph:
    """Trace the value and its tangents.

    Raises:
        FormulaError: if it cannot be traced, as where a backward has no derivative.
    """
    n = len(tensors)
    moved = [torch.empty_like(tensors[i]) for i in d.wanted]

    def both(*given: Tensor) -> Any:
        return d.pushed(given[:n], given[n:])

    return _traced(both, [*(x.detach() for x in tensors), *moved], n, d.name)


def elementwise_jvp(graph: DerivativeGraph) -> DerivativeGraph | None:
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
    made_graph = DerivativeGraph(fx.GraphModule(graph.module, new), [made[x] for x in graph.inputs], tangents, [], [])
    update_results(made_graph)
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


def _traced(function: Callable[..., Any], given: Sequence[Tensor], n: int, name: str) -> DerivativeGraph:
    try:
        module = _torch.trace_symbolic(function, given, DECOMPOSITIONS)
    except FormulaError:
        raise
    except Exception as error:  # any error of a formula on tensors without data
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise FormulaError(f"{name} cannot be written: it cannot be traced ({reason}).") from error
    placeholders = module.graph.find_nodes(op="placeholder")
    graph = DerivativeGraph(module, placeholders[:n], placeholders[n:], [], [])
    update_results(graph)
    _refuse(graph, name)
    _keep_stops(graph)
    cancel_inverses(module.graph)
    simplify(module.graph)
    update_results(graph)
    graph.guards = _torch.shape_guards(module)
    return graph


def update_results(graph: DerivativeGraph) -> None:
    """Update the record of a graph's results."""
    returned: Any = graph.module.graph.output_node().args[0]
    values, results = returned
    graph.outputs = [v for v in values if isinstance(v, fx.Node)]
    graph.results = list(results)


def drop_outputs(graph: DerivativeGraph) -> None:
    """Have a graph return its results alone, for a backward that cannot have the outputs."""
    graph.module.graph.output_node().args = ([[], list(graph.results)],)
    simplify(graph.module.graph)
    update_results(graph)


def _refuse(graph: DerivativeGraph, name: str) -> None:
    """Refuse a graph that would not be the same function in writing."""
    written = functionalise(graph.module.graph)
    if written is not None:
        raise FormulaError(f"{name} cannot be written: it works in place ({written.target}).")
    for node in graph.module.graph.nodes:
        if node.op == "call_function" and torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise FormulaError(f"{name} cannot be written: it draws random numbers ({node.target}).")


def _keep_stops(graph: DerivativeGraph) -> None:
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


aten = torch.ops.aten
_UNDONE = (aten.t.default, aten.neg.default, aten.flip.default)
"""Ops that are their own inverse."""
_RESHAPED = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


def cancel_inverses(graph: fx.Graph) -> None:
    """Remove pairs of transpositions and negations, and reshapes and expansions to the same shape."""
    ends = set(graph.output_node().all_input_nodes)
    for node in list(graph.nodes):
        same = _unchanged(node)
        if same is not None and not (node in ends and same.op == "placeholder"):
            node.replace_all_uses_with(same)
            graph.erase_node(node)


def _unchanged(node: fx.Node) -> fx.Node | None:
    """Return an earlier node with the value of this one."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    before: Any = node.args[0]
    if node.target in _UNDONE and before.target is node.target and before.args[1:] == node.args[1:]:
        return before.args[0]  # type: ignore[no-any-return]
    if _is_by_one(node):
        return before  # type: ignore[no-any-return]
    if (
        node.target is aten.transpose.int
        and before.target is aten.transpose.int
        and set(_dims(node)) == set(_dims(before))
    ):
        return before.args[0]  # type: ignore[no-any-return]
    if node.target in (*_RESHAPED, aten.expand.default) and _same_shape(node, before):
        return before  # type: ignore[no-any-return]
    if node.target in _RESHAPED and before.target in _RESHAPED and _same_shape(node, before.args[0]):
        return before.args[0]  # type: ignore[no-any-return]
    return None


def _is_by_one(node: fx.Node) -> bool:
    """Whether a node is a value times or divided by 1."""
    by_one = str(node.target) in ("aten.mul.Tensor", "aten.mul.Scalar", "aten.div.Tensor", "aten.div.Scalar")
    one = node.args[1] if len(node.args) == 2 else None
    return by_one and type(one) in (int, float) and bool(one == 1) and bool(node.meta["val"].is_floating_point())


def _dims(node: fx.Node) -> list[int]:
    dims: int = node.meta["val"].dim()
    places: Any = node.args[1:]
    return [d % dims for d in places]


def _same_shape(a: fx.Node, b: fx.Node) -> bool:
    x, y = a.meta.get("val"), b.meta.get("val")
    if not isinstance(x, Tensor) or not isinstance(y, Tensor) or x.dim() != y.dim():
        return False
    return [str(s) for s in x.shape] == [str(s) for s in y.shape]


_SIZES = ("sym_size", "sym_numel")


def dependencies(wanted: Iterable[fx.Node], known: Iterable[fx.Node]) -> list[fx.Node]:
    """Return the nodes that have to be computed, in the order of the graph."""
    there, found, stack = set(known), set(), list(wanted)
    while stack:
        node = stack.pop()
        if node in there or node in found:
            continue
        found.add(node)
        stack += node.all_input_nodes
    graph = next(iter(found)).graph if found else None
    return [node for node in graph.nodes if node in found] if graph is not None else []


def is_size(node: fx.Node) -> bool:
    """Whether the value of a node is a size of a tensor."""
    return op_name(node) in _SIZES


def use_counts(wanted: Sequence[fx.Node], known: Iterable[fx.Node]) -> dict[fx.Node, int]:
    """Return how often the value of each node is used to compute some."""
    counts: dict[fx.Node, int] = {}

    def count(a: Any) -> fx.Node:
        counts[a] = counts.get(a, 0) + 1
        return a  # type: ignore[no-any-return]

    for node in dependencies(wanted, known):
        fx.node.map_arg((node.args, node.kwargs), count)
    for node in wanted:
        counts[node] = counts.get(node, 0) + 1
    return counts


@dataclass(slots=True)
class Residuals:
    """Residuals of a forward.

    Attributes:
        saved: names of tensors, and their nodes.
        shapes: names of inputs that are needed for their shape only, and their nodes.
    """

    saved: dict[str, fx.Node] = field(default_factory=dict)
    shapes: dict[str, fx.Node] = field(default_factory=dict)


def residuals_for(graph: DerivativeGraph, names: Mapping[fx.Node, str], shaped: Collection[str] = ()) -> Residuals:
    """Return the residuals that a graph's results need; an input that is read for its sizes alone counts as a shape.

    Args:
        graph: of the derivative.
        names: of the inputs and outputs that can be saved, in the order in which they are.
        shaped: names of further inputs whose shapes are read.
    """
    wanted = [node for node in graph.results if node is not None]
    kept = Residuals()
    for node in [*dependencies(wanted, [*names, *graph.given]), None]:
        for a in wanted if node is None else node.all_input_nodes:
            if a in names:
                sizes = node is not None and is_size(node) and a in graph.inputs
                (kept.shapes if sizes else kept.saved)[names[a]] = a
    kept.shapes |= {names[node]: node for node in graph.inputs if names[node] in shaped}
    for name in kept.saved:
        kept.shapes.pop(name, None)
    order = {name: i for i, name in enumerate(names.values())}
    kept.saved = dict(sorted(kept.saved.items(), key=lambda item: order[item[0]]))
    return kept
