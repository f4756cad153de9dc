"""Graphs of ATen ops with symbolic sizes for the value, the vjp and the jvp of a specification.

Unlike the graphs that are compiled, these hold for all sizes, and PyTorch's fused backward ops are decomposed, since
autograd has to be able to differentiate the written code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.errors import FormulaError
from pullback.graph.trace import functionalise, simplify
from pullback.write.decompositions import DECOMPOSITIONS
from pullback.write.expressions import op_name
from pullback.write.spec import FunctionSpec

aten = torch.ops.aten


@dataclass(slots=True)
class DerivativeGraph:
    """A graph of a formula together with its vjp or jvp.

    Attributes:
        module: graph of ATen ops; returns the outputs and the derivatives.
        inputs: nodes of the formula's tensors.
        seeds: nodes of the cotangents or of the tangents.
        outputs: nodes of the value.
        derivatives: nodes of the gradients of the active inputs, or of the tangents of the active outputs; `None` for
            a zero.
        guards: conditions on the sizes, as sympy expressions.
    """

    module: fx.GraphModule
    inputs: list[fx.Node]
    seeds: list[fx.Node]
    outputs: list[fx.Node] = field(default_factory=list)
    derivatives: list[fx.Node | None] = field(default_factory=list)
    guards: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.update_results()

    def update_results(self) -> None:
        """Find outputs and derivatives in the module, after it was changed."""
        returned: Any = self.module.graph.output_node().args[0]
        values, derivatives = returned
        self.outputs = [v for v in values if isinstance(v, fx.Node)]
        self.derivatives = list(derivatives)

    def drop_outputs(self) -> None:
        """Return the derivatives alone, for a backward that cannot save the outputs."""
        self.module.graph.output_node().args = ([[], list(self.derivatives)],)
        simplify(self.module.graph)
        self.update_results()

    def copy(self) -> DerivativeGraph:
        """Copy the graph, with new nodes and without the guards."""
        new = fx.Graph()
        made: dict[fx.Node, fx.Node] = {}
        for node in self.module.graph.nodes:
            made[node] = _with_meta(new.node_copy(node, made.__getitem__), node)
        module = fx.GraphModule(self.module, new)
        return DerivativeGraph(module, [made[x] for x in self.inputs], [made[x] for x in self.seeds])

    def op_count(self) -> int:
        """Number of ops of the derivative, given the value."""
        available = [*self.inputs, *self.seeds, *self.outputs]
        return len(dependencies([node for node in self.derivatives if node is not None], available))


def vjp_graph(spec: FunctionSpec, tensors: Sequence[Tensor]) -> DerivativeGraph:
    """Trace the value and the gradients of the active inputs.

    Raises:
        FormulaError: if it cannot be traced.
    """
    n = len(tensors)

    def value_and_vjp(*given: Tensor) -> Any:
        values, roots = spec.run(given[:n])
        return values, spec.vjp(roots, values, given[:n], given[n:])

    return _trace(value_and_vjp, [*(x.detach() for x in tensors), *spec.cotangents(tensors)], n, spec.name)


def jvp_graph(spec: FunctionSpec, tensors: Sequence[Tensor]) -> DerivativeGraph:
    """Trace the value and its tangents.

    Raises:
        FormulaError: if it cannot be traced, as where a backward has no derivative.
    """
    n = len(tensors)
    tangents = [torch.empty_like(tensors[i]) for i in spec.active_inputs]

    def value_and_jvp(*given: Tensor) -> Any:
        return spec.jvp(given[:n], given[n:])

    return _trace(value_and_jvp, [*(x.detach() for x in tensors), *tangents], n, spec.name)


def _trace(function: Callable[..., Any], given: Sequence[Tensor], n: int, name: str) -> DerivativeGraph:
    try:
        module = _torch.trace_symbolic(function, given, DECOMPOSITIONS)
    except FormulaError:
        raise
    except Exception as error:  # any error of a formula on tensors without data
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise FormulaError(f"{name} cannot be written: it cannot be traced ({reason}).") from error
    placeholders = module.graph.find_nodes(op="placeholder")
    graph = DerivativeGraph(module, placeholders[:n], placeholders[n:])
    _refuse_impure(module.graph, name)
    _mark_detach(graph)
    _cancel_inverses(module.graph)
    simplify(module.graph)
    graph.update_results()
    graph.guards = _torch.shape_guards(module)
    return graph


def _refuse_impure(graph: fx.Graph, name: str) -> None:
    """Refuse a graph that works in place or draws random numbers, which a text would do otherwise."""
    in_place = functionalise(graph)
    if in_place is not None:
        raise FormulaError(f"{name} cannot be written: it works in place ({in_place.target}).")
    for node in graph.nodes:
        if node.op == "call_function" and torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise FormulaError(f"{name} cannot be written: it draws random numbers ({node.target}).")


def _mark_detach(graph: DerivativeGraph) -> None:
    """Keep the formula's own `detach`, as `torch.detach`.

    Autograd aliases saved tensors by the same ATen op. Only that of the formula leads to an output.
    """
    for node in _ancestors(graph.outputs):
        if node.target is aten.detach.default:
            node.target = torch.detach


_INVOLUTIONS = (aten.t.default, aten.neg.default, aten.flip.default)
"""Ops that are their own inverse."""
_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


def _cancel_inverses(graph: fx.Graph) -> None:
    """Remove pairs of transpositions and negations, and reshapes and expansions to the same shape.

    Traces of derivatives are full of them: the backward of a transposition is another one.
    """
    ends = set(graph.output_node().all_input_nodes)
    for node in list(graph.nodes):
        equal = _equal_ancestor(node)
        if equal is not None and not (node in ends and equal.op == "placeholder"):
            node.replace_all_uses_with(equal)
            graph.erase_node(node)


def _equal_ancestor(node: fx.Node) -> fx.Node | None:
    """An operand of a node, or the operand's operand, that has the value of the node."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    operand: Any = node.args[0]
    inner: Any = operand.args[0] if operand.args else None
    if node.target in _INVOLUTIONS and operand.target is node.target and operand.args[1:] == node.args[1:]:
        return inner  # type: ignore[no-any-return]
    if _is_times_one(node):
        return operand  # type: ignore[no-any-return]
    if node.target is operand.target is aten.transpose.int and set(_dims(node)) == set(_dims(operand)):
        return inner  # type: ignore[no-any-return]
    if node.target in (*_RESHAPES, aten.expand.default) and _have_one_shape(node, operand):
        return operand  # type: ignore[no-any-return]
    if node.target in _RESHAPES and operand.target in _RESHAPES and _have_one_shape(node, inner):
        return inner  # type: ignore[no-any-return]
    return None


def _is_times_one(node: fx.Node) -> bool:
    """Whether a node is a value times or divided by 1."""
    by_one = str(node.target) in ("aten.mul.Tensor", "aten.mul.Scalar", "aten.div.Tensor", "aten.div.Scalar")
    one = node.args[1] if len(node.args) == 2 else None
    return by_one and type(one) in (int, float) and bool(one == 1) and bool(node.meta["val"].is_floating_point())


def _dims(node: fx.Node) -> list[int]:
    n: int = node.meta["val"].dim()
    dims: Any = node.args[1:]
    return [d % n for d in dims]


def _have_one_shape(a: fx.Node, b: fx.Node) -> bool:
    x, y = traced_value(a), traced_value(b)
    if not isinstance(x, Tensor) or not isinstance(y, Tensor) or x.dim() != y.dim():
        return False
    return [str(s) for s in x.shape] == [str(s) for s in y.shape]


def elementwise_jvp(graph: DerivativeGraph) -> DerivativeGraph | None:
    """The tangent of an elementwise formula with one output, from its gradients.

    Its Jacobian by each input is diagonal, hence its own transpose: the gradient for an input, with the input's
    tangent in the place of the cotangent, is that input's part of the tangent.
    """
    if len(graph.seeds) != 1 or len(graph.outputs) != 1:
        return None
    (g,) = graph.seeds
    new = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for node in graph.inputs:
        made[node] = _with_meta(new.placeholder(node.name), node)
    tangents = [_with_meta(new.placeholder(f"tangent_{i}"), g) for i in range(len(graph.derivatives))]
    total: fx.Node | None = None
    linear_in_g = _descendants(g)
    for tangent, gradient in zip(tangents, graph.derivatives, strict=True):
        if gradient is None:
            continue
        own = {g: tangent}
        for node in graph.module.graph.nodes:
            if node.op in ("placeholder", "output") or node in made:
                continue
            target = own if node in linear_in_g else made
            target[node] = _with_meta(new.node_copy(node, lambda a, own=own: own[a] if a in own else made[a]), node)  # type: ignore[misc]
        part = own[gradient] if gradient in own else made[gradient]
        if total is not None:
            part = _with_meta(new.call_function(aten.add.Tensor, (total, part)), graph.outputs[0])
        total = part
    new.output([[made[out] for out in graph.outputs], [total]])
    simplify(new)
    return DerivativeGraph(fx.GraphModule(graph.module, new), [made[x] for x in graph.inputs], tangents)


def _with_meta(copy: fx.Node, node: fx.Node) -> fx.Node:
    copy.meta = dict(node.meta)
    return copy


def traced_value(node: fx.Node) -> Any:
    """The traced value of a node: a tensor without data, or a size."""
    return node.meta.get("val")


def _ancestors(nodes: Iterable[fx.Node], known: Iterable[fx.Node] = ()) -> set[fx.Node]:
    """Some nodes and all that they are computed from, except those in `known` and what only these depend on."""
    available, found, stack = set(known), set[fx.Node](), list(nodes)
    while stack:
        node = stack.pop()
        if node not in available and node not in found:
            found.add(node)
            stack += node.all_input_nodes
    return found


def _descendants(node: fx.Node) -> set[fx.Node]:
    found, stack = set[fx.Node](), [node]
    while stack:
        user = stack.pop()
        if user not in found:
            found.add(user)
            stack += user.users
    return found


def dependencies(wanted: Iterable[fx.Node], known: Iterable[fx.Node]) -> list[fx.Node]:
    """Nodes that have to be computed for some, given the known ones; in the order of the graph."""
    found = _ancestors(wanted, known)
    graph = next(iter(found)).graph if found else None
    return [node for node in graph.nodes if node in found] if graph is not None else []


def use_counts(wanted: Sequence[fx.Node], known: Iterable[fx.Node]) -> dict[fx.Node, int]:
    """Number of times that the value of each node is used to compute some."""
    counts: dict[fx.Node, int] = {}

    def count(a: Any) -> fx.Node:
        counts[a] = counts.get(a, 0) + 1
        return a  # type: ignore[no-any-return]

    for node in dependencies(wanted, known):
        fx.node.map_arg((node.args, node.kwargs), count)
    for node in wanted:
        counts[node] = counts.get(node, 0) + 1
    return counts


def is_size(node: fx.Node) -> bool:
    """Whether the value of a node is a size of a tensor."""
    return op_name(node) in ("sym_size", "sym_numel")


@dataclass(slots=True)
class Residuals:
    """Residuals of a forward.

    Attributes:
        saved: names of tensors, and their nodes.
        shapes: names of inputs that are needed for their shape only, and their nodes.
    """

    saved: dict[str, fx.Node] = field(default_factory=dict)
    shapes: dict[str, fx.Node] = field(default_factory=dict)


def residuals_for(graph: DerivativeGraph, names: Mapping[fx.Node, str], with_shape: Collection[str] = ()) -> Residuals:
    """Residuals that the derivatives of a graph need.

    Args:
        graph: graph of the derivative.
        names: names of the inputs and outputs that can be saved, in order.
        with_shape: names of inputs whose shapes are needed besides.
    """
    results = [node for node in graph.derivatives if node is not None]
    found = Residuals()
    for node in [*dependencies(results, [*names, *graph.seeds]), None]:
        for a in results if node is None else node.all_input_nodes:
            if a in names:
                by_size_alone = node is not None and is_size(node) and a in graph.inputs
                (found.shapes if by_size_alone else found.saved)[names[a]] = a
    found.shapes |= {names[node]: node for node in graph.inputs if names[node] in with_shape}
    for name in found.saved:
        found.shapes.pop(name, None)
    order = {name: i for i, name in enumerate(names.values())}
    found.saved = dict(sorted(found.saved.items(), key=lambda item: order[item[0]]))
    return found
