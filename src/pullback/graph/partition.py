"""Partition of the joint graph of a formula and its vjp into a forward and a backward.

The forward computes what the outputs need, the backward everything else, as autograd does. Residuals are the values
that cross the cut, or smaller ones from which the backward recomputes them.

These are a minimum cut between the forward's values and those that the backward uses, as in Chen et al., "Training deep
nets with sublinear memory cost", 2016, and in PyTorch's own partitioner. Cutting a value costs its bytes; pointwise ops
and views may be recomputed from values before the cut. Masks may be saved, packed to bits where kernels can; a
comparison that only the backward needs then moves to the forward, if that is the cheapest cut.

The operands of a decision (`pullback.graph.decisions`) must be bit-identical to the forward's. They are recomputed only
by ops with one correct result, from values that are exact themselves. So the flow network has two nodes for a value
that other ops recompute: its exact value, and any value close to it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.dtypes import is_continuous
from pullback.errors import FormulaError, is_fault
from pullback.graph.bits import bytes_of, cross_as_bits, is_packed, is_without_gaps
from pullback.graph.decisions import ancestors, decides, is_cheap, is_reproducible, round_before_choices
from pullback.graph.facts import Flat
from pullback.graph.symbolic import has_extents, kind_of, with_extents
from pullback.graph.trace import functionalise, mutates, simplify

Trace = Callable[..., fx.GraphModule]


class UntracedError(Exception):
    """The reason why a derivative cannot be traced."""


@dataclass(frozen=True, slots=True)
class Joint:
    """Forward and backward graphs of a formula, for one kind of input.

    Attributes:
        forward: inputs to outputs and residuals, in one list.
        backward: residuals and cotangents to the gradients of the wanted inputs.
        n_outputs: number of outputs among the forward's results.
        saved: for each residual its position among the inputs, or `None` if it is computed.
        wanted: positions of the inputs that are differentiated.
        unused: for each of these, whether no output depends on it.
        connected: positions of the outputs that depend on them.
        untracked: whether outputs are views of memory that nothing else refers to: autograd need not track the view,
            and the caller may write to them.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule
    n_outputs: int
    saved: tuple[int | None, ...]
    wanted: tuple[int, ...]
    unused: tuple[bool, ...]
    connected: tuple[int, ...]
    untracked: bool


def joint_of(
    value: Flat,
    derivative: Flat,
    tensors: Sequence[Tensor],
    outputs: Sequence[Any],
    wanted: Sequence[int],
    recompute: bool = False,
    trace: Trace = _torch.trace_ops,
    bits: bool = False,
) -> Joint:
    """Trace a formula with its vjp, and partition the graph.

    Args:
        value: computes the outputs.
        derivative: computes the same outputs, and is differentiated.
        tensors: the inputs.
        outputs: fake results of `derivative`: shape, strides and dtype of the cotangents.
        wanted: positions of the inputs to differentiate.
        recompute: whether the backward recomputes cheap values where that saves memory.
        trace: records the ops of a call.
        bits: whether boolean residuals are packed to one bit each; only with `recompute`.

    Raises:
        UntracedError: if the formula or its derivative cannot be traced.
        FormulaError: if its derivative is zero on one of several devices.
    """
    results = [out for out in outputs if isinstance(out, Tensor)]
    connected = [i for i, out in enumerate(results) if out.requires_grad] if wanted else []
    cotangents = [_cotangent(results[i]) for i in connected]
    n = len(tensors)

    before: set[str] = set()  # names of the nodes that the derivative comes after

    def both(*given: Tensor) -> list[Any]:
        if value is not derivative or not connected:
            with torch.no_grad():
                values = [out for out in value(*given[:n]) if isinstance(out, Tensor)]
        if not connected:
            return [values, []]
        primals = [x.detach().requires_grad_() if i in wanted else x.detach() for i, x in enumerate(given[:n])]
        with torch.enable_grad():
            outs = [out for out in derivative(*primals) if isinstance(out, Tensor)]
        before.clear()  # a trace may start over
        before.update(_torch.names_traced())
        roots, leaves = [outs[i] for i in connected], [primals[i] for i in wanted]
        if value is derivative:
            values = outs
        return [values, list(torch.autograd.grad(roots, leaves, given[n:], allow_unused=True))]

    given = [*(x.detach() for x in tensors), *cotangents]
    try:
        graph = trace(both, *given)
    except Exception as error:  # any error of the formula on fake tensors, or a refusal by autograd
        if is_fault(error):
            raise
        raise UntracedError(f"{type(error).__name__}: {error}") from error
    _fill_zeros(graph, {x.device for x in given})
    return _partitioned(graph, n, before, tuple(wanted), tuple(connected), recompute, bits)


def _fill_zeros(traced: fx.GraphModule, devices: set[torch.device]) -> None:
    """Allocate zeros in place of those without memory (`_efficientzerotensor`), since kernels take addresses.

    Autograd makes these where it knows a derivative to be zero. A trace records PyTorch's sums and products of them as
    zeros on the meta device: their own device is lost.
    """
    zeros = torch.ops.aten.zeros.default
    for node in traced.graph.nodes:
        if node.target is _UNALLOCATED:
            node.target = zeros
    lost = [node for node in traced.graph.nodes if _is_lost(node, traced)]
    if not lost or _NOWHERE in devices:
        return
    if len(devices) > 1:
        raise FormulaError("its derivative is zero on one of several devices, which a trace does not tell apart.")
    like = next(iter(traced.graph.nodes)).meta["val"]
    for node in lost:
        value = _torch.traced_value(node) if node.op == "call_function" else getattr(traced, str(node.target))
        options: dict[str, Any] = {"dtype": value.dtype, "device": next(iter(devices))}
        with traced.graph.inserting_before(node):
            made = traced.graph.call_function(zeros, (list(kind_of(value)[0]),), options)
        made.meta["val"] = like.new_zeros(value.shape, dtype=value.dtype)
        node.replace_all_uses_with(made)
        traced.graph.erase_node(node)


_NOWHERE = torch.device("meta")
_UNALLOCATED = torch.ops.aten._efficientzerotensor.default


def _is_lost(node: fx.Node, traced: fx.GraphModule) -> bool:
    """Whether a node is zeros whose device the trace has lost."""
    if node.op == "get_attr":
        held = getattr(traced, str(node.target))
        return isinstance(held, Tensor) and _torch.is_zero_tensor(held)
    return node.target is torch.ops.aten.zeros.default and node.kwargs.get("device") == _NOWHERE


def _cotangent(out: Tensor) -> Tensor:
    """Real tensor with the size and layout of an output; its values are not read."""
    return torch.empty_strided(cotangent_size(out), cotangent_stride(out), dtype=out.dtype, device=out.device)


def cotangent_size(out: Tensor) -> tuple[int, ...]:
    """Size of an output's cotangent."""
    return tuple(out.shape)


def cotangent_stride(out: Tensor) -> tuple[int, ...]:
    """Strides that cotangents are brought to: the output's if it is dense, else row-major ones."""
    dense = sorted((s, n) for s, n in zip(out.stride(), out.shape, strict=True) if n > 1)
    # Dense: sorted by stride, each is the product of the sizes of the dimensions inside.
    step = 1
    for stride, size in dense:
        if stride != step:
            return torch.empty(out.shape, device="meta").stride()
        step *= size
    return tuple(out.stride())


def _partitioned(
    joint: fx.GraphModule,
    n_inputs: int,
    before: set[str],
    wanted: tuple[int, ...],
    connected: tuple[int, ...],
    recompute: bool,
    bits: bool,
) -> Joint:
    """Partition a joint graph; `before` names the nodes that were traced before the derivative was taken."""
    graph = joint.graph
    functionalise(graph)
    simplify(graph)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    inputs, cotangents = placeholders[:n_inputs], placeholders[n_inputs:]
    recompute = recompute and not mutates(graph)
    bits = bits and recompute
    if recompute:
        _decompose_clips(graph, inputs)
    results: Any = graph.output_node().args[0]
    outputs, gradients = results
    round_before_choices(graph, outputs)
    checks = [node for node in graph.nodes if node.op == "call_function" and node.name in before and node.is_impure()]
    ahead = ancestors([*outputs, *checks])
    for node in graph.nodes:  # a residual is a tensor: several results of an op are unpacked where it runs
        if node.target is operator.getitem and node.args[0] in ahead:
            ahead.add(node)
    later = [node for node in graph.nodes if node not in ahead and node.op not in {"placeholder", "output"}]
    early = _early(later, cotangents) if recompute else set()
    later = [node for node in later if node not in early]
    known = {*ahead, *inputs, *early}
    uses = [(a, decides(node, a)) for node in later for a in node.all_input_nodes if a in known]
    uses += [(g, False) for g in gradients if g in known]
    residuals = [a for a in dict.fromkeys(a for a, _ in uses) if a.op != "get_attr"]
    recomputed: set[fx.Node] = set()
    if recompute and any(node not in inputs for node in residuals):
        saved = _cheapest(inputs, outputs, uses, early, bits)
        residuals, recomputed = _recomputed(residuals, saved, inputs)
    computed = [node for node in residuals if node not in inputs]
    ahead |= ancestors(computed)
    forward = _subgraph(joint, inputs, [node for node in graph.nodes if node in ahead], [*outputs, *computed])
    recomputed.update(later)
    body = [node for node in graph.nodes if node in recomputed or (node.op == "get_attr" and node in ahead)]
    backward = _subgraph(joint, [*residuals, *cotangents], body, list(gradients))
    if bits:
        cross_as_bits(forward, backward, len(outputs), [node not in inputs for node in residuals])
    positions = tuple(inputs.index(node) if node in inputs else None for node in residuals)
    unused = tuple(g is None for g in gradients)
    untracked = any(map(_is_view, outputs)) and not _share_memory(outputs, computed)
    return Joint(forward, backward, len(outputs), positions, wanted, unused, connected, untracked)


def _recomputed(
    used: Sequence[fx.Node], saved: set[fx.Node], inputs: Sequence[fx.Node]
) -> tuple[list[fx.Node], set[fx.Node]]:
    """Residuals, among the saved values and the inputs, that give the used values, and the nodes that compute these."""
    residuals: dict[fx.Node, None] = {}
    recomputed: set[fx.Node] = set()
    stack = list(reversed(used))
    while stack:
        node = stack.pop()
        if node in saved or node in inputs:
            residuals[node] = None
        elif node not in recomputed:
            recomputed.add(node)
            stack += [a for a in reversed(node.all_input_nodes) if a.op != "get_attr"]
    return list(residuals), recomputed


def _is_view(node: Any) -> bool:
    while isinstance(node, fx.Node) and node.target is operator.getitem:
        node = node.args[0]
    return isinstance(node, fx.Node) and node.op == "call_function" and _torch.is_view(node.target)


def _share_memory(outputs: Sequence[Any], computed: Sequence[fx.Node]) -> bool:
    """Whether a residual that is not an output itself aliases one."""
    nodes = [node for node in outputs if isinstance(node, fx.Node)]
    memory = {_torch.storage_of(_torch.traced_value(node)) for node in nodes}
    return any(_torch.storage_of(_torch.traced_value(node)) in memory for node in computed if node not in nodes)


def _subgraph(
    joint: fx.GraphModule, placeholders: Sequence[fx.Node], body: Sequence[fx.Node], results: Sequence[Any]
) -> fx.GraphModule:
    """Nodes of a joint graph as a graph of their own."""
    part = fx.Graph()
    made: dict[fx.Node, fx.Node] = {node: part.placeholder(node.name) for node in placeholders}
    for node, copy in made.items():
        copy.meta = dict(node.meta)
    for node in body:
        if node not in made:
            made[node] = part.node_copy(node, made.__getitem__)
    part.output([made[r] if isinstance(r, fx.Node) else r for r in results])
    part.eliminate_dead_code()
    part.lint()
    return fx.GraphModule(joint, part)


_RESULT = 0.9
"""Fraction of its bytes that an output costs: the caller may release it."""

Use = tuple[fx.Node, bool]
"""A value that the backward uses, and whether it must be bit-identical to the forward's."""


def _cheapest(
    inputs: Collection[fx.Node],
    outputs: Collection[Any],
    uses: Iterable[Use],
    early: Collection[fx.Node],
    bits: bool,
) -> set[fx.Node]:
    """Values to save: the cheapest from which cheap ops compute all that the backward uses.

    Args:
        inputs: inputs of the forward.
        outputs: outputs of the forward.
        uses: nodes of the forward, inputs and nodes of `early` that the rest of the backward uses.
        early: nodes of the backward that do not depend on cotangents (`_early`).
        bits: whether masks are packed.
    """
    certain = _Certain(inputs)
    wanted = {(node, exactly and not certain(node)) for node, exactly in uses if node.op != "get_attr"}
    operands: dict[Use, list[Use]] = {}
    sources: set[Use] = set()
    stack = list(wanted)
    while stack:
        at = node, exactly = stack.pop()
        if at in operands:
            continue
        operands[at] = []
        if node in inputs or not is_cheap(node) or (exactly and node not in early and not is_reproducible(node)):
            sources.add(at)
        else:
            given = [a for a in node.all_input_nodes if a.op != "get_attr"]
            operands[at] += [(a, (exactly or decides(node, a)) and not certain(a)) for a in given]
            stack += operands[at]
    if all(node in inputs for node, _ in sources):
        return {node for node, _ in sources}
    prices = {at: _price(at[0], inputs, outputs, early, bits) for at in operands}
    return {node for node, _ in _minimum_cut(prices, operands, sources, wanted)}


class _Certain:
    """Predicate: a value is bit-identical to the forward's, being saved or computed by exact ops from such values.

    Booleans and integers are, since the operands of every decision are exact.
    """

    def __init__(self, inputs: Collection[fx.Node]) -> None:
        self._known = dict.fromkeys(inputs, True)

    def __call__(self, node: fx.Node) -> bool:
        stack = [node]
        while stack:
            at = stack[-1]
            waiting = [a for a in at.all_input_nodes if a not in self._known] if is_cheap(at) else []
            if at in self._known or not waiting:
                stack.pop()
                self._known.setdefault(at, self._is(at))
            else:
                stack += waiting
        return self._known[node]

    def _is(self, node: fx.Node) -> bool:
        value = node.meta.get("val")
        if not is_cheap(node) or (isinstance(value, Tensor) and not is_continuous(value.dtype)):
            return True
        return is_reproducible(node) and all(self._known[a] for a in node.all_input_nodes)


def _minimum_cut(
    prices: dict[Use, float], operands: dict[Use, list[Use]], sources: set[Use], wanted: set[Use]
) -> set[Use]:
    """Cheapest set of nodes on every path from the sources to the wanted values.

    Each value is an edge from "in" to "out" with its price as capacity. Edges between values have infinite capacity, so
    a minimum cut of edges is one of values.
    """
    # A cheap op needs all its operands. So, by induction along the graph, a value is available to the backward if and
    # only if every path to it from a source contains a saved value, which may be the value itself. For all wanted
    # values at once, that is a cut of the vertices between sources and wanted values, and splitting each vertex makes
    # it one of edges. The exact and the approximate node of a value are priced apart, though saving it serves both:
    # where both are cut, the cut counts its bytes twice, and a cheaper set may exist.
    import networkx as nx  # type: ignore[import-untyped]  # here, since it takes a tenth of a second

    graph = nx.DiGraph()
    graph.add_nodes_from((_START, _END))
    for at, price in prices.items():
        graph.add_edge((at, "in"), (at, "out"), capacity=price)
        if at in sources:
            graph.add_edge(_START, (at, "in"))  # without a capacity, which is infinite
        graph.add_edges_from(((a, "out"), (at, "in")) for a in operands[at])
        if at in wanted:
            graph.add_edge((at, "out"), _END)
    _, (before, _) = nx.minimum_cut(graph, _START, _END)
    return {at for at in prices if (at, "in") in before and (at, "out") not in before}


_START, _END = "start", "end"


def _early(later: Iterable[fx.Node], cotangents: Iterable[fx.Node]) -> set[fx.Node]:
    """Nodes of a backward that cheap ops compute from values of the forward, without cotangents."""
    # Such a value, as the mask x > 0, is a function of the forward's values alone: the forward may compute and save it.
    early: set[fx.Node] = set()
    late = set(cotangents)
    for node in later:
        if node.op == "get_attr":
            continue
        if is_cheap(node) and late.isdisjoint(node.all_input_nodes):
            early.add(node)
        else:
            late.add(node)
    return early


def _price(
    node: fx.Node, inputs: Collection[fx.Node], outputs: Collection[Any], early: Collection[fx.Node], bits: bool
) -> float:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return float("inf")
    if node in inputs:
        return 0.0  # the autograd node keeps every input, for derivatives of higher order
    # The byte more decides between cuts of equal size: fewer values.
    if bits and node not in outputs and is_packed(value):
        return bytes_of(value.numel()) + 1
    if node in early and value.dtype != torch.bool:
        return float("inf")  # no smaller than its operands
    return (value.numel() * value.element_size() + 1) * (_RESULT if node in outputs else 1.0)


aten = torch.ops.aten


def _decompose_clips(graph: fx.Graph, inputs: Collection[fx.Node]) -> None:
    """Decompose derivatives of clipped functions into a comparison and a selection, so that the mask can be saved.

    Not where they compare an input or an output, which is kept anyway, or likely to be.
    """
    outputs: Any = graph.output_node().args[0]
    kept = {*inputs, *outputs[0]}
    for node in list(graph.nodes):
        write = _WRITERS.get(node.target)
        if write is None or node.args[1] in kept:
            continue
        value = _torch.traced_value(node.args[1])
        if is_without_gaps(value) and all(_is_exact(number, value.dtype) for number in node.args[2:]):
            with graph.inserting_before(node):
                made = write(graph, node)
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made)
            graph.erase_node(node)


def _is_exact(number: Any, dtype: torch.dtype) -> bool:
    """Whether a comparison with a number is unaffected by rounding that number."""
    return dtype.itemsize > 2 or torch.tensor(number, dtype=dtype).item() == number


def _mask(graph: fx.Graph, target: Any, *args: Any) -> fx.Node:
    made = graph.call_function(target, args)
    like = _torch.traced_value(args[0])
    value = like.new_empty_strided(like.shape, like.stride(), dtype=torch.bool)
    made.meta["val"] = with_extents(value, *kind_of(like)[:2]) if has_extents(like) else value
    return made


# Each of these derivatives is g where a mask is set, and 0 or slope · g elsewhere: of x it needs one bit an element.


def _threshold(graph: fx.Graph, node: fx.Node) -> fx.Node:
    g, x, threshold = node.args
    return graph.call_function(aten.masked_fill.Scalar, (g, _mask(graph, aten.le.Scalar, x, threshold), 0))


def _hardtanh(graph: fx.Graph, node: fx.Node) -> fx.Node:
    g, x, lower, upper = node.args
    above, below = _mask(graph, aten.gt.Scalar, x, lower), _mask(graph, aten.lt.Scalar, x, upper)
    outside = _mask(graph, aten.logical_not.default, _mask(graph, aten.logical_and.default, above, below))
    return graph.call_function(aten.masked_fill.Scalar, (g, outside, 0))


def _leaky(graph: fx.Graph, node: fx.Node) -> fx.Node:
    g, x, slope, _ = node.args
    less = graph.call_function(aten.mul.Scalar, (g, slope))
    less.meta = dict(node.meta)
    return graph.call_function(aten.where.self, (_mask(graph, aten.gt.Scalar, x, 0), g, less))


# Not in the registry: the masks are saved by a partition alone.
_WRITERS: Mapping[Any, Callable[[fx.Graph, fx.Node], fx.Node]] = {
    aten.threshold_backward.default: _threshold,
    aten.hardtanh_backward.default: _hardtanh,
    aten.leaky_relu_backward.default: _leaky,
}
