"""Shapes for which a text holds: any, if every op is pointwise; else those of the example's kind, which it checks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.errors import FormulaError
from pullback.write.expressions import op_name
from pullback.write.graphs import DerivativeGraph, value_of, vjp_graph
from pullback.write.spec import FunctionSpec

_WORDS = """
    clone _to_copy detach where zeros_like ones_like full_like lift_fresh_copy scalar_tensor
"""
_AS_POINTWISE = frozenset(_WORDS.split())
_LETTERS = "nmkpqrstuvw"


@dataclass(slots=True)
class Shapes:
    """The shapes of the tensors of a call.

    Attributes:
        elementwise: whether every op is pointwise, so that any shapes that broadcast will do.
        inputs: sizes of each input: letters and numbers.
        outputs: the same for the outputs.
        conditions: conditions on the inputs, by their names, in Python.
    """

    elementwise: bool
    inputs: list[list[str]] = field(default_factory=list)
    outputs: list[list[str]] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)


def is_pointwise(graph: DerivativeGraph) -> bool:
    """Whether every op of a graph computes element by element, without sizes."""
    for node in graph.module.graph.nodes:
        if node.op == "get_attr" and getattr(graph.module, str(node.target)).dim():
            return False
        number = (op_name(node) == "full" and not node.args[0]) or _is_log_sigmoid(node)
        if node.op != "call_function" or number or op_name(node) in _AS_POINTWISE:
            continue
        if torch.Tag.pointwise not in getattr(node.target, "tags", ()) and node.target is not torch.detach:
            return False
    return True


def _is_log_sigmoid(node: fx.Node) -> bool:
    """Whether a node is log σ, for which PyTorch returns a buffer, too."""
    source: Any = node.args[0] if op_name(node) == "getitem" else node
    return op_name(source) == "log_sigmoid_forward"


def broadcast_sample(tensors: Sequence[Tensor]) -> list[Tensor] | None:
    """Return the tensors of a call broadcast to one shape, of two sizes that differ."""
    try:
        broadcast = torch.broadcast_tensors(*tensors)
    except RuntimeError:
        return None
    n = broadcast[0].numel()
    if n == 0:
        return None
    return [x.reshape(-1)[torch.arange(15) % n].reshape(3, 5).clone() for x in broadcast]


def shapes_of(graph: DerivativeGraph, names: Sequence[str], elementwise: bool) -> Shapes:
    """Return the shapes for which a graph was traced."""
    letters: dict[str, str] = {}
    places: dict[str, str] = {}
    found = Shapes(elementwise)
    for name, node in zip(names, graph.inputs, strict=True):
        sizes = _torch.size_symbols(value_of(node))
        found.inputs.append([_letter(s, letters) for s in sizes])
        if elementwise:
            continue
        found.conditions.append(f"{name}.dim() == {len(sizes)}")
        for i, size in enumerate(sizes):
            at = f"{name}.shape[{i}]"
            if str(size) not in places and not str(size).isdigit():
                places[str(size)] = at
            else:
                found.conditions.append(f"{at} == {places.get(str(size), size)}")
    found.outputs = [[_letter(s, letters) for s in _torch.size_symbols(value_of(node))] for node in graph.outputs]
    if elementwise:
        return found
    try:
        found.conditions += _guards(graph.guards, places)
    except FormulaError:  # then for the sizes of the example
        found.inputs, found.outputs = (
            [[str(n) for n in _torch.size_hints(value_of(node))] for node in nodes]
            for nodes in (graph.inputs, graph.outputs)
        )
        found.conditions = [
            f"{name}.shape == {tuple(_torch.size_hints(value_of(node)))}"
            for name, node in zip(names, graph.inputs, strict=True)
        ]
    return found


def _letter(size: Any, letters: dict[str, str]) -> str:
    text = str(size)
    if text.isdigit():
        return text
    if re.fullmatch(r"[su]\d+", text) and text not in letters:
        letters[text] = _LETTERS[len(letters)] if len(letters) < len(_LETTERS) else text
    return re.sub(r"[su]\d+", lambda m: letters.get(m[0], m[0]), text)


def _guards(guards: Sequence[Any], places: dict[str, str]) -> list[str]:
    """Return conditions on sizes as Python text.

    Raises:
        FormulaError: if one cannot be expressed.
    """
    found = []
    for guard in guards:
        text = str(guard)
        if text in ("True", "true"):
            continue
        match = re.fullmatch(r"(Eq|Ne)\(([^,]*), ([^,]*)\)", text)
        if match:
            text = f"{match[2]} {'==' if match[1] == 'Eq' else '!='} {match[3]}"
        symbols = set(re.findall(r"\b[su]\d+\b", text))
        rest = re.sub(r"\b[su]\d+\b", "", text)
        if re.search(r"[A-Za-z]", rest) or not symbols <= places.keys():
            raise FormulaError(f"it holds for some sizes alone, which cannot be told: {guard}.")
        found.append(re.sub(r"\b[su]\d+\b", lambda m: places[m[0]], text))
    return list(dict.fromkeys(found))


def trace_vjp(d: FunctionSpec, tensors: Sequence[Tensor]) -> tuple[DerivativeGraph, Shapes, list[Tensor]]:
    """Return the graph of value and gradients, its shapes, and the tensors it was traced with: of one shape if that
    will do.
    """
    same = broadcast_sample(tensors)
    if same is not None:
        try:
            graph = vjp_graph(d, same)
        except Exception:  # any error of the formula on tensors of another shape
            graph = None
        if graph is not None and is_pointwise(graph):
            return graph, shapes_of(graph, d.names, True), same
    graph = vjp_graph(d, tensors)
    return graph, shapes_of(graph, d.names, False), list(tensors)
