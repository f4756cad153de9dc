"""A graph of ATen ops as lines to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

from pullback import _torch


def lines_of(graph: fx.Graph, inputs: Sequence[str], around: Mapping[str, Any]) -> list[str]:
    """Return one line per op, "name = op(arguments)", and a last one for the result.

    `inputs` are the names of the first placeholders; the others are cotangents: g, or g0, g1, …. `around` are the
    tensors that the formula closes over, by name.
    """
    lines = []
    placeholders = graph.find_nodes(op="placeholder")
    rest = len(placeholders) - len(inputs)
    given = [*inputs, *(["g"] if rest == 1 else [f"g{i}" for i in range(rest)])]
    names = {node: node.name for node in graph.nodes} | dict(zip(placeholders, given, strict=True))
    known = {id(value): name for name, value in around.items()}
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
    """Return the name of the op of a node, without namespace and overload."""
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
