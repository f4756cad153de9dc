"""A graph of ATen ops as lines to read, with where its ops have kinks and where they are defined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

KINKS = {
    "abs": "abs at 0",
    "relu": "relu at 0",
    "leaky_relu": "leaky_relu at 0",
    "clamp": "clamp at its bounds",
    "clamp_min": "clamp at its bound",
    "clamp_max": "clamp at its bound",
    "hardtanh": "hardtanh at its bounds",
    "maximum": "maximum where its arguments are equal",
    "minimum": "minimum where its arguments are equal",
    "max": "max where elements are equal",
    "min": "min where elements are equal",
    "amax": "amax where elements are equal",
    "amin": "amin where elements are equal",
    "sort": "sort where elements are equal",
    "topk": "topk where elements are equal",
    "sign": "sign at 0 (0 elsewhere)",
    "round": "round at half-integers (0 elsewhere)",
    "floor": "floor at integers (0 elsewhere)",
    "ceil": "ceil at integers (0 elsewhere)",
    "trunc": "trunc at integers (0 elsewhere)",
    "where": "where, if the two sides differ at the border of its condition",
    "linalg_vector_norm": "a norm at 0",
    "norm": "a norm at 0",
}
"""Ops that are not differentiable everywhere, by name."""

DOMAINS = {
    "log": "log: its argument must be positive",
    "log2": "log2: its argument must be positive",
    "log10": "log10: its argument must be positive",
    "log1p": "log1p: its argument must be greater than −1",
    "sqrt": "sqrt: its argument must not be negative; its derivative is infinite at 0",
    "rsqrt": "rsqrt: its argument must be positive",
    "reciprocal": "reciprocal: its argument must not be 0",
    "div": "a division: the divisor must not be 0",
    "acos": "acos: its argument must lie in [−1, 1]; its derivative is infinite at ±1",
    "asin": "asin: its argument must lie in [−1, 1]; its derivative is infinite at ±1",
    "acosh": "acosh: its argument must be at least 1",
    "atanh": "atanh: its argument must lie in (−1, 1)",
    "logit": "logit: its argument must lie in (0, 1)",
    "lgamma": "lgamma: poles at 0 and the negative integers",
    "exp": "exp: overflows where its argument is large (above 88 in float32)",
    "pow": "pow: a negative base has no real power that is not whole",
    "linalg_inv_ex": "an inverse: the matrix must be invertible",
    "linalg_cholesky_ex": "Cholesky: the matrix must be positive definite",
}
"""Ops that are not defined everywhere, by name."""


def lines_of(graph: fx.Graph, inputs: Sequence[str]) -> list[str]:
    """Return one line for each op, "name = op(arguments)", and a last one for what is returned.

    `inputs` are the names of the first placeholders; the others are cotangents: g, or g0, g1, …
    """
    lines = []
    placeholders = graph.find_nodes(op="placeholder")
    rest = len(placeholders) - len(inputs)
    given = [*inputs, *(["g"] if rest == 1 else [f"g{i}" for i in range(rest)])]
    names = {node: node.name for node in graph.nodes} | dict(zip(placeholders, given, strict=True))
    for node in graph.nodes:
        if node.op == "call_function":
            arguments = [_shown(a, names) for a in node.args] + [
                f"{k}={_shown(v, names)}" for k, v in node.kwargs.items()
            ]
            lines.append(f"{node.name} = {op_name(node)}({', '.join(arguments)})")
        elif node.op == "output":
            lines.append(f"return {_shown(node.args[0], names)}")
    return lines


def notes_of(graph: fx.Graph, table: dict[str, str]) -> list[str]:
    """Return what `table` says of the ops of a graph, each once, in their order."""
    names = [op_name(node) for node in graph.nodes if node.op == "call_function"]
    return list(dict.fromkeys(table[name] for name in names if name in table))


def op_name(node: fx.Node) -> str:
    """Return the name of the op of a node, without namespace and overload."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target.overloadpacket.__name__)
    return str(getattr(target, "__name__", target))


def _shown(argument: Any, names: dict[fx.Node, str]) -> str:
    if isinstance(argument, fx.Node):
        return names[argument]
    if isinstance(argument, list | tuple):
        inner = ", ".join(_shown(a, names) for a in argument)
        return f"[{inner}]" if isinstance(argument, list) else f"({inner})"
    return str(argument).removeprefix("torch.")
