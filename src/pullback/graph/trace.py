"""Graphs of ATen ops after a trace (`_torch.trace_ops`): functionalised, simplified, printed.

The graph of a formula replaces it only if the ops in it have the formula's derivative (`graph_of`).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.graph.facts import Flat

_AUTOGRAD_ONLY = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
"""Identities that only autograd sees. Kernels run below it."""


def graph_of(flat: Flat, tensors: Sequence[Tensor], wanted: Sequence[int]) -> fx.GraphModule | str:
    """Graph of a formula's value without in-place ops, or the reason why no graph can replace the formula.

    The ops must have the formula's derivative. A graph of values shows neither a `no_grad` nor the derivative of a
    Function or of an op with a rule, so the gradients of both are traced and compared.
    """

    def value(*given: Tensor) -> list[Any]:
        for i in wanted:
            given[i].requires_grad_()
        with torch.enable_grad():
            return flat(*given)

    module = _torch.trace_ops(value, *(x.detach() for x in tensors))
    written = functionalise(module.graph)
    copied = next((node for node in module.graph.nodes if node.target is torch.ops.aten.copy.default), None)
    if (left := written or copied) is not None:  # `copy` has no derivative, which `copy_` has
        return f"it works in place ({left.target})"
    module.graph.eliminate_dead_code()
    module.recompile()
    if wanted and not _same_derivative(flat, lambda *given: list(module(*given)), tensors, wanted):
        return "its derivative is not that of its ops: it has a no_grad (use detach) or a derivative that is given"
    return module


def _same_derivative(one: Flat, other: Flat, tensors: Sequence[Tensor], wanted: Sequence[int]) -> bool:
    """Whether two functions of one result, and their gradients, are the same expressions of the inputs."""
    # Equal numbers mean equal expressions in the inputs, which is enough, not necessary: two forms of one derivative,
    # as x + x and 2 x, get different numbers, and the formula is refused.
    numbers: dict[Any, int] = {}
    found = []
    for flat in (one, other):

        def both(*given: Tensor, flat: Flat = flat) -> list[Any]:
            primals = [x.detach().requires_grad_() if i in wanted else x.detach() for i, x in enumerate(given)]
            with torch.enable_grad():
                (out,) = flat(*primals)
                if not out.requires_grad:
                    return [out]
                return [out, *torch.autograd.grad(out, [primals[i] for i in wanted], allow_unused=True)]

        found.append(_numbered(_torch.trace_ops(both, *(x.detach() for x in tensors)), numbers))
    return bool(found[0] == found[1])


def _numbered(module: fx.GraphModule, numbers: dict[Any, int]) -> Any:
    """Value numbering: the results of a graph as numbers, equal for equal expressions in all graphs of one table."""
    functionalise(module.graph)
    known: dict[fx.Node, int] = {}
    for i, node in enumerate(module.graph.nodes):
        key: Any
        if node.op == "output":
            return repr(fx.node.map_arg(node.args[0], lambda a: known[a]))
        if node.op == "placeholder":
            key = ("input", i)
        elif node.op == "get_attr":
            constant: Tensor = operator.attrgetter(str(node.target))(module)
            key = ("constant", str(constant.dtype), repr(constant.tolist()))
        elif node.target in _AUTOGRAD_ONLY or node.target is torch.ops.aten.lift_fresh.default:
            known[node] = known[node.args[0]]
            continue
        else:
            given = fx.node.map_arg((node.args, node.kwargs), lambda a: known[a])
            key = (node.target, repr(given))
        known[node] = numbers.setdefault(key, len(numbers))
    raise AssertionError("a graph has an output")


def functionalise(graph: fx.Graph) -> fx.Node | None:
    """Replace in-place ops on tensors that the graph allocates; return the first that has to stay.

    Some of PyTorch's derivatives fill or mask a tensor that they have just made.
    """
    # A trace names the tensor after a write by the node that wrote. If no later node reads the old name, no view shares
    # the memory, and no caller holds it, nothing can tell a write from a new tensor: renaming is what is left.
    order = {node: i for i, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.op != "call_function" or not _torch.is_mutable(node.target):
            continue
        target: Any = node.args[0]
        pure = _torch.functional_variant(node.target)
        made_here = target.op == "call_function" and not _torch.is_view(target.target)
        others = [user for user in target.users if user is not node]
        if pure is None or not made_here or not _keeps_dtype(node):
            return node  # type: ignore[no-any-return]
        if any(order[user] > order[node] or _is_view(user) for user in others):
            return node  # type: ignore[no-any-return]
        node.target = pure
        if pure == torch.ops.aten.fill.Scalar and target.target == torch.ops.aten.empty_like.default:
            node.target, node.args = torch.ops.aten.full_like.default, (target.args[0], node.args[1])
            node.kwargs = dict(target.kwargs)
    return None


def _is_view(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is not operator.getitem and _torch.is_view(node.target)


_TRUTHS = frozenset(
    ["logical_and_", "logical_or_", "logical_xor_", "logical_not_", "eq_", "ne_", "lt_", "le_", "gt_", "ge_"]
)


def _keeps_dtype(node: fx.Node) -> bool:
    """Whether the functional variant of an in-place op has the dtype of the tensor that is written to.

    Index and mask arguments do not take part in type promotion with floating-point tensors.
    """
    target: Any = node.args[0]
    own = target.meta["val"].dtype
    dtypes = {value.dtype for a in node.all_input_nodes if isinstance(value := a.meta.get("val"), Tensor)}
    if own != torch.bool and str(node.target).split(".")[1] in _TRUTHS:
        return False
    if own.is_floating_point or own.is_complex:
        return not any(dtype != own and (dtype.is_floating_point or dtype.is_complex) for dtype in dtypes)
    return dtypes == {own} and not any(isinstance(a, float | complex) for a in (*node.args, *node.kwargs.values()))


def simplify(graph: fx.Graph) -> None:
    """Remove ops that only affect autograd, common subexpressions, and dead code.

    Equal nodes have equal results: nothing in the graph is random (`facts_of`). Exceptions are nodes that read memory
    which an in-place op of a derivative writes to.
    """
    written = _written(graph)
    results = set(graph.output_node().all_input_nodes)
    known: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.target == _NEW_FULL and not node.args[1]:
            node.target, node.args = torch.ops.aten.full.default, node.args[1:]
            node.kwargs = _factory_options(node.meta["val"])
        if node.op != "call_function":
            continue
        same = node.args[0] if node.target in _AUTOGRAD_ONLY or _torch.is_tripwire(node.target) else None
        if same is None and not written.intersection((node, *node.all_input_nodes)):
            key = (node.target, repr(node.args), repr(node.kwargs))
            same = known.setdefault(key, node)
        if same is not None and same is not node and node not in results:  # two results stay two tensors
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    graph.eliminate_dead_code()


_NEW_FULL = torch.ops.aten.new_full.default
"""Scalar constants of stable forms. They become `aten.full`, so that no tensor is saved for its dtype alone."""


def _factory_options(value: Tensor) -> dict[str, Any]:
    return {"dtype": value.dtype, "device": value.device, "pin_memory": False}


def mutates(graph: fx.Graph) -> bool:
    """Whether an op of a graph writes to an argument, so that the order of ops matters."""
    return any(node.op == "call_function" and _torch.is_mutable(node.target) for node in graph.nodes)


def _written(graph: fx.Graph) -> set[fx.Node]:
    """Nodes that may alias an operand of an in-place op: operands, bases of views among them, views of these."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        writes = node.op == "call_function" and _torch.is_mutable(node.target)
        if writes or (node in found and _torch.is_view(node.target)):
            found.update((node, *node.all_input_nodes))
    for node in graph.nodes:
        if node.op == "call_function" and _torch.is_view(node.target) and found.intersection(node.all_input_nodes):
            found.add(node)
    return found


def lines_of(graph: fx.Graph, inputs: Sequence[str], captured: Mapping[str, Any]) -> list[str]:
    """Print a graph: one line per op, "name = op(arguments)", and a last one for the result.

    `inputs` are the names of the first placeholders; the others are cotangents: g, or g0, g1, …. `captured` are the
    tensors that the formula closes over, by name.
    """
    lines = []
    placeholders = graph.find_nodes(op="placeholder")
    rest = len(placeholders) - len(inputs)
    given = [*inputs, *(["g"] if rest == 1 else [f"g{i}" for i in range(rest)])]
    names = {node: node.name for node in graph.nodes} | dict(zip(placeholders, given, strict=True))
    known = {id(value): name for name, value in captured.items()}
    for node in graph.find_nodes(op="get_attr"):
        names[node] = known.get(id(getattr(graph.owning_module, str(node.target), None)), node.name)
    for node in graph.nodes:
        if node.op == "call_function":
            arguments = [_shown(a, names) for a in node.args] + [
                f"{k}={_shown(v, names)}" for k, v in node.kwargs.items()
            ]
            lines.append(f"{node.name} = {op_name(node)}({', '.join(arguments)})")
        elif node.op == "output":
            lines.append(f"return {_shown(node.args[0], names)}")
    return lines


def op_name(node: fx.Node) -> str:
    """Name of a node's op, without namespace and overload."""
    target = node.target
    if _torch.is_dispatched_op(target):
        return _torch.op_name(target).partition("::")[2].partition(".")[0]
    return str(getattr(target, "__name__", target))


def _shown(argument: Any, names: dict[fx.Node, str]) -> str:
    if isinstance(argument, fx.Node):
        return names[argument]
    if isinstance(argument, list | tuple):
        inner = ", ".join(_shown(a, names) for a in argument)
        return f"[{inner}]" if isinstance(argument, list) else f"({inner})"
    return str(argument).removeprefix("torch.")
