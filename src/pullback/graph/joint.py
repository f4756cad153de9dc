"""Joint graph of a formula and its vjp, partitioned into a forward and a backward.

The partition is autograd's: the forward computes what the outputs need, the backward everything else. Residuals are the
values that cross the cut, or cheaper ones from which the backward recomputes them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.errors import FormulaError, is_fault
from pullback.graph.bits import cross_as_bits
from pullback.graph.choices import by_comparisons
from pullback.graph.decisions import ancestors, decides, round_before_choices
from pullback.graph.extents import kind_of
from pullback.graph.facts import Flat
from pullback.graph.functional import functionalise
from pullback.graph.saving import chosen, early_of

Trace = Callable[..., fx.GraphModule]

_NO_OPS = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


class UntracedError(Exception):
    """Why a derivative cannot be traced."""


@dataclass(frozen=True, slots=True)
class Joint:
    """A formula and its vjp, for one kind of input.

    Attributes:
        forward: tensors to (outputs, residuals), in one list.
        backward: residuals and cotangents to the gradients of the wanted inputs.
        n_outputs: how many of the forward's results are outputs.
        saved: for each residual the index of the input that it is, or `None` if it is computed.
        wanted: positions of the inputs that get a gradient.
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
    """Trace a formula and its vjp.

    Args:
        value: returns the outputs.
        derivative: returns the same outputs; this function is differentiated.
        tensors: the inputs.
        outputs: fake results of `derivative`: shape, strides and dtype of the cotangents.
        wanted: positions of the inputs to differentiate.
        recompute: whether the backward recomputes cheap values where that saves memory.
        trace: records the ops of a call.
        bits: whether boolean residuals are packed to one bit each, where cheap values are recomputed.

    Raises:
        UntracedError: if the formula or its derivative cannot be traced.
        FormulaError: if its derivative is zero on one of several devices.
    """
    results = [out for out in outputs if isinstance(out, Tensor)]
    connected = [i for i, out in enumerate(results) if out.requires_grad] if wanted else []
    cotangents = [_cotangent(results[i]) for i in connected]
    n = len(tensors)

    ahead: set[str] = set()

    def both(*given: Tensor) -> list[Any]:
        if value is not derivative or not connected:
            with torch.no_grad():
                values = [out for out in value(*given[:n]) if isinstance(out, Tensor)]
        if not connected:
            return [values, []]
        primals = [x.detach().requires_grad_() if i in wanted else x.detach() for i, x in enumerate(given[:n])]
        with torch.enable_grad():
            outs = [out for out in derivative(*primals) if isinstance(out, Tensor)]
        ahead.clear()  # a trace may start over
        ahead.update(_torch.names_traced())
        roots, leaves = [outs[i] for i in connected], [primals[i] for i in wanted]
        if value is derivative:
            values = outs
        return [values, list(torch.autograd.grad(roots, leaves, given[n:], allow_unused=True))]

    given = [*(x.detach() for x in tensors), *cotangents]
    try:
        graph = trace(both, *given)
    except Exception as error:  # any error of the formula on tensors without data, or a refusal by autograd
        if is_fault(error):
            raise
        raise UntracedError(f"{type(error).__name__}: {error}") from error
    _fill_zeros(graph, {x.device for x in given})
    return _cut(graph, n, ahead, tuple(wanted), tuple(connected), recompute, bits)


def _fill_zeros(traced: fx.GraphModule, devices: set[torch.device]) -> None:
    """Have zeros computed where a trace holds zeros without memory, which autograd makes where it knows a derivative.

    A trace holds PyTorch's products and sums of such zeros as zeros on no device. A kernel takes addresses, which zeros
    without memory do not have.
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
    """Whether a node is a tensor of zeros whose device the trace has lost."""
    if node.op == "get_attr":
        held = getattr(traced, str(node.target))
        return isinstance(held, Tensor) and _torch.is_zero_tensor(held)
    return node.target is torch.ops.aten.zeros.default and node.kwargs.get("device") == _NOWHERE


def _cotangent(out: Tensor) -> Tensor:
    """Return a real tensor with the size and layout of an output (its values are not read)."""
    return torch.empty_strided(cotangent_size(out), cotangent_stride(out), dtype=out.dtype, device=out.device)


def cotangent_size(out: Tensor) -> tuple[int, ...]:
    """Return the size of an output's cotangent."""
    return tuple(out.shape)


def cotangent_stride(out: Tensor) -> tuple[int, ...]:
    """Return the layout that cotangents are brought to: the output's, or row-major where that overlaps."""
    dense = sorted((s, n) for s, n in zip(out.stride(), out.shape, strict=True) if n > 1)
    step = 1
    for stride, size in dense:
        if stride != step:
            return torch.empty(out.shape, device="meta").stride()
        step *= size
    return tuple(out.stride())


def _cut(
    joint: fx.GraphModule,
    n_inputs: int,
    before: set[str],
    wanted: tuple[int, ...],
    connected: tuple[int, ...],
    recompute: bool,
    bits: bool,
) -> Joint:
    """Divide a joint graph; `before` names the nodes that stood before the derivative was taken."""
    graph = joint.graph
    functionalise(graph)
    simplify(graph)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    inputs, cotangents = placeholders[:n_inputs], placeholders[n_inputs:]
    recompute = recompute and not mutates(graph)
    bits = bits and recompute
    if recompute:
        by_comparisons(graph, inputs)
    results: Any = graph.output_node().args[0]
    outputs, gradients = results
    round_before_choices(graph, outputs)
    checks = [node for node in graph.nodes if node.op == "call_function" and node.name in before and node.is_impure()]
    ahead = ancestors([*outputs, *checks])
    for node in graph.nodes:  # a residual is a tensor: an op with several results is taken apart where it runs
        if node.target is operator.getitem and node.args[0] in ahead:
            ahead.add(node)
    later = [node for node in graph.nodes if node not in ahead and node.op not in {"placeholder", "output"}]
    early = early_of(later, cotangents) if recompute else set()
    later = [node for node in later if node not in early]
    known = {*ahead, *inputs, *early}
    read = [(a, decides(node, a)) for node in later for a in node.all_input_nodes if a in known]
    read += [(g, False) for g in gradients if g in known]
    borders = [a for a in dict.fromkeys(a for a, _ in read) if a.op != "get_attr"]
    again: set[fx.Node] = set()
    if recompute and any(node not in inputs for node in borders):
        kept = chosen(inputs, outputs, read, early, bits)
        borders, again = _reached(borders, kept, inputs)
    computed = [node for node in borders if node not in inputs]
    ahead |= ancestors(computed)
    forward = _part(joint, inputs, [node for node in graph.nodes if node in ahead], [*outputs, *computed])
    again.update(later)
    body = [node for node in graph.nodes if node in again or (node.op == "get_attr" and node in ahead)]
    backward = _part(joint, [*borders, *cotangents], body, list(gradients))
    if bits:
        cross_as_bits(forward, backward, len(outputs), [node not in inputs for node in borders])
    saved = tuple(inputs.index(node) if node in inputs else None for node in borders)
    unused = tuple(g is None for g in gradients)
    untracked = any(map(_is_view, outputs)) and not _share_memory(outputs, computed)
    return Joint(forward, backward, len(outputs), saved, wanted, unused, connected, untracked)


def _reached(
    read: Sequence[fx.Node], kept: set[fx.Node], inputs: Sequence[fx.Node]
) -> tuple[list[fx.Node], set[fx.Node]]:
    """Return the frontier, nodes of `kept` and inputs, from which `read` is computable, and the nodes to recompute."""
    borders: dict[fx.Node, None] = {}
    again: set[fx.Node] = set()
    stack = list(reversed(read))
    while stack:
        node = stack.pop()
        if node in kept or node in inputs:
            borders[node] = None
        elif node not in again:
            again.add(node)
            stack += [a for a in reversed(node.all_input_nodes) if a.op != "get_attr"]
    return list(borders), again


def _is_view(node: Any) -> bool:
    while isinstance(node, fx.Node) and node.target is operator.getitem:
        node = node.args[0]
    return isinstance(node, fx.Node) and node.op == "call_function" and _torch.is_view(node.target)


def _share_memory(outputs: Sequence[Any], computed: Sequence[fx.Node]) -> bool:
    """Whether a residual that is not an output itself aliases one."""
    nodes = [node for node in outputs if isinstance(node, fx.Node)]
    memory = {_torch.storage_of(_torch.traced_value(node)) for node in nodes}
    return any(_torch.storage_of(_torch.traced_value(node)) in memory for node in computed if node not in nodes)


def simplify(graph: fx.Graph) -> None:
    """Remove ops that only affect autograd (kernels run below it), common subexpressions, and dead code.

    Two equal nodes have equal results, since nothing here is random (`facts_of`), unless they read memory that is
    written to, as some of PyTorch's derivatives do.
    """
    written = _written(graph)
    results = set(graph.output_node().all_input_nodes)
    known: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.target == _NEW_FULL and not node.args[1]:
            node.target, node.args = torch.ops.aten.full.default, node.args[1:]
            node.kwargs = _factory_options(node.meta["val"])
        if node.op != "call_function" or node in results:  # two results stay two tensors, even with equal values
            continue
        same = node.args[0] if node.target in _NO_OPS or _torch.is_tripwire(node.target) else None
        if same is None and not written.intersection((node, *node.all_input_nodes)):
            key = (node.target, repr(node.args), repr(node.kwargs))
            same = known.setdefault(key, node)
        if same is not None and same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    graph.eliminate_dead_code()


_NEW_FULL = torch.ops.aten.new_full.default
"""Scalar constants of stable forms. `aten.full` stands in for them, lest a tensor is saved for its dtype."""


def _factory_options(value: Tensor) -> dict[str, Any]:
    return {"dtype": value.dtype, "device": value.device, "pin_memory": False}


def mutates(graph: fx.Graph) -> bool:
    """Whether an op of a graph writes to an argument, as some of PyTorch's derivatives do: then order matters."""
    return any(node.op == "call_function" and _torch.is_mutable(node.target) for node in graph.nodes)


def _written(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes that may alias an operand of an in-place op.

    These are, conservatively, the operands, the operands of the views among them, and all views of these.
    """
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        writes = node.op == "call_function" and _torch.is_mutable(node.target)
        if writes or (node in found and _torch.is_view(node.target)):
            found.update((node, *node.all_input_nodes))
    for node in graph.nodes:
        if node.op == "call_function" and _torch.is_view(node.target) and found.intersection(node.all_input_nodes):
            found.add(node)
    return found


def _part(
    joint: fx.GraphModule, placeholders: Sequence[fx.Node], body: Sequence[fx.Node], results: Sequence[Any]
) -> fx.GraphModule:
    """Return the nodes of `body` as a separate graph."""
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
