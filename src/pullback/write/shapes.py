"""Shapes for which a text holds: any, if every op is pointwise; else those of the example's kind, which it checks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.errors import FormulaError
from pullback.write.expressions import op_name
from pullback.write.graphs import DerivativeGraph, traced_value, vjp_graph
from pullback.write.spec import FunctionSpec

# Beside its reader: the registry does not say which ops take sizes.
_WORDS = """
    clone _to_copy detach where zeros_like ones_like full_like lift_fresh_copy scalar_tensor
"""
_ALSO_POINTWISE = frozenset(_WORDS.split())
"""Ops without PyTorch's tag `pointwise` that compute element by element all the same."""
_LETTERS = "nmkpqrstuvw"


@dataclass(slots=True)
class Shapes:
    """The shapes of the tensors of a call.

    Attributes:
        elementwise: whether every op is pointwise, so that all shapes that broadcast are valid.
        inputs: sizes of each input: letters and numbers.
        outputs: the same for the outputs.
        conditions: conditions on the inputs, by their names, in Python.
    """

    elementwise: bool
    inputs: list[list[str]] = field(default_factory=list)
    outputs: list[list[str]] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)


def trace_vjp(spec: FunctionSpec, tensors: Sequence[Tensor]) -> tuple[DerivativeGraph, Shapes, list[Tensor]]:
    """Trace value and gradients; return the graph, its shapes, and the tensors that it was traced with.

    If the tensors broadcast and every op is pointwise, all are traced at one shape: the graph then has no sizes in it.
    """
    sample = _broadcast_sample(tensors)
    if sample is not None:
        try:
            graph = vjp_graph(spec, sample)
        except Exception:  # any error of the formula on tensors of another shape
            graph = None
        if graph is not None and _is_pointwise(graph):
            return graph, _shapes_of(graph, spec.names, True), sample
    graph = vjp_graph(spec, tensors)
    return graph, _shapes_of(graph, spec.names, False), list(tensors)


def _broadcast_sample(tensors: Sequence[Tensor]) -> list[Tensor] | None:
    """The tensors of a call, broadcast and sampled to a shape of two different sizes."""
    try:
        broadcast = torch.broadcast_tensors(*tensors)
    except RuntimeError:
        return None
    n = broadcast[0].numel()
    if n == 0:
        return None
    return [x.reshape(-1)[torch.arange(15) % n].reshape(3, 5).clone() for x in broadcast]


def _is_pointwise(graph: DerivativeGraph) -> bool:
    """Whether every op of a graph computes element by element, without sizes."""
    for node in graph.module.graph.nodes:
        if node.op == "get_attr" and getattr(graph.module, str(node.target)).dim():
            return False
        number = (op_name(node) == "full" and not node.args[0]) or _is_log_sigmoid(node)
        if node.op != "call_function" or number or op_name(node) in _ALSO_POINTWISE:
            continue
        if torch.Tag.pointwise not in getattr(node.target, "tags", ()) and node.target is not torch.detach:
            return False
    return True


def _is_log_sigmoid(node: fx.Node) -> bool:
    """Whether a node is log σ, for which PyTorch returns a buffer, too."""
    source: Any = node.args[0] if op_name(node) == "getitem" else node
    return op_name(source) == "log_sigmoid_forward"


def _shapes_of(graph: DerivativeGraph, names: Sequence[str], elementwise: bool) -> Shapes:
    """The shapes for which a graph was traced."""
    letters: dict[str, str] = {}

    def lettered(nodes: Iterable[fx.Node]) -> list[list[str]]:
        return [[_letter(size, letters) for size in _torch.size_symbols(traced_value(node))] for node in nodes]

    shapes = Shapes(elementwise, lettered(graph.inputs), lettered(graph.outputs))
    if elementwise:
        return shapes
    try:
        shapes.conditions = _symbolic_conditions(graph, names)
    except FormulaError:  # then for the sizes of the example alone
        sizes = [tuple(_torch.size_hints(traced_value(node))) for node in graph.inputs]
        shapes.inputs = [[str(n) for n in shape] for shape in sizes]
        shapes.outputs = [[str(n) for n in _torch.size_hints(traced_value(node))] for node in graph.outputs]
        shapes.conditions = [f"{name}.shape == {shape}" for name, shape in zip(names, sizes, strict=True)]
    return shapes


def _letter(size: Any, letters: dict[str, str]) -> str:
    text = str(size)
    if text.isdigit():
        return text
    if re.fullmatch(r"[su]\d+", text) and text not in letters:
        letters[text] = _LETTERS[len(letters)] if len(letters) < len(_LETTERS) else text
    return re.sub(r"[su]\d+", lambda m: letters.get(m[0], m[0]), text)


def _symbolic_conditions(graph: DerivativeGraph, names: Sequence[str]) -> list[str]:
    """Conditions in Python on dimensions, on sizes that are equal or fixed, and of the guards of a trace.

    Raises:
        FormulaError: if a guard has no text.
    """
    sources: dict[str, str] = {}
    found = []
    for name, node in zip(names, graph.inputs, strict=True):
        sizes = _torch.size_symbols(traced_value(node))
        found.append(f"{name}.dim() == {len(sizes)}")
        for i, size in enumerate(sizes):
            source = f"{name}.shape[{i}]"
            if str(size) not in sources and not str(size).isdigit():
                sources[str(size)] = source
            else:
                found.append(f"{source} == {sources.get(str(size), size)}")
    guards = [text for guard in graph.guards if (text := _guard(guard, sources))]
    return found + list(dict.fromkeys(guards))


def _guard(guard: Any, sources: dict[str, str]) -> str:
    """A guard in Python, with the shapes that its symbols stand for; empty if it always holds.

    Raises:
        FormulaError: if it has functions, or symbols that are not the size of an input.
    """
    text = str(guard)
    if text in ("True", "true"):
        return ""
    match = re.fullmatch(r"(Eq|Ne)\(([^,]*), ([^,]*)\)", text)
    if match:
        text = f"{match[2]} {'==' if match[1] == 'Eq' else '!='} {match[3]}"
    symbols = set(re.findall(r"\b[su]\d+\b", text))
    rest = re.sub(r"\b[su]\d+\b", "", text)
    if re.search(r"[A-Za-z]", rest) or not symbols <= sources.keys():
        raise FormulaError(f"it is valid only where {guard}, which has no form in Python.")
    return re.sub(r"\b[su]\d+\b", lambda m: sources[m[0]], text)
