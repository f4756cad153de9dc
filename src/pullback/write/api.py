"""`pullback.write`: the source of a plain `torch.autograd.Function`."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.errors import FormulaError
from pullback.write.definition import Definition
from pullback.write.docstring import docstring
from pullback.write.example import example_of
from pullback.write.function import Writer
from pullback.write.graphs import Graph, elementwise_jvp, jvp_graph, vjp_graph
from pullback.write.reading import definition_of
from pullback.write.shapes import Shapes, alike, is_pointwise, shapes_of
from pullback.write.stable import backward_of, last_class, use_forms
from pullback.write.testing import test_of
from pullback.write.tidy import tidied
from pullback.write.verify import has_vmap, require_same


def write(target: Any, *inputs: Any, **kwargs: Any) -> str:
    """Return the source of a plain `torch.autograd.Function` that depends on torch alone.

    It has `forward`, `setup_context`, `backward`, `jvp` and `generate_vmap_rule`; it saves inputs and outputs alone,
    so that autograd can differentiate its backward. Before it is returned it is run beside the target, at the inputs:
    value, gradient and second derivative are the same.

    Args:
        target: an op, an `autograd.Function` class, of which only the forward is used, or a function in torch ops.
        inputs: the positional arguments of one example call, whose values are read. Plain ones become constants of the
            text. Without them, an example is made.
        kwargs: the keyword arguments of that call.

    Raises:
        OptionError: if the target is nothing that can be written, or needs inputs to be given.
        FormulaError: if it cannot be written, or not so that its derivatives are right.
    """
    return written(target, inputs, kwargs).source


_VMAP = "    generate_vmap_rule = True\n\n"


@dataclass(frozen=True, slots=True)
class Written:
    """The written source of a target.

    Attributes:
        definition: of the target.
        tensors: of the example call.
        source: the source text.
    """

    definition: Definition
    tensors: list[Tensor]
    source: str

    def test(self, module: str) -> str:
        """Return the text of a test file, for the source in a module of that name."""
        return test_of(self.definition, self.tensors, module, "def jvp(" in self.source, _VMAP in self.source)


def written(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Written:
    """Write a target for a call, or for one that is found if there are no arguments; see `write`."""
    if not args and not kwargs:
        args, kwargs = example_of(target, getattr(target, "__name__", str(target)))
    try:
        d, tensors = definition_of(target, args, kwargs)
        return Written(d, tensors, _source(d, tensors))
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:  # of the target, on its inputs
        name = getattr(target, "__name__", str(target))
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise FormulaError(f"{name} cannot be written: {reason}.") from error


def _source(d: Definition, tensors: Sequence[Tensor]) -> str:
    try:
        classes = [_class(d, tensors)]
        if d.forms is not None:
            gradient = _class(backward_of(d), [*tensors, torch.ones_like(d.outputs(tensors)[0])])
            classes[:0] = [last_class(d.class_name), gradient]
    except FormulaError as error:
        text = str(error)
        raise FormulaError(text if text.startswith(d.name) else f"{d.name} cannot be written: {text}") from error
    body = "\n\n".join(classes)
    imports = ["import torch"]
    imports += ["import torch.nn.functional as F"] if re.search(r"\bF\.", body) else []
    source = "\n".join(imports) + "\n\n\n" + body
    require_same(d, source, tensors)
    return source if has_vmap(d, source, tensors) else source.replace(_VMAP, "")


def _class(d: Definition, tensors: Sequence[Tensor]) -> str:
    if d.forms is not None:
        use_forms(d)
    graph, shapes, example = traced(d, tensors)
    if d.forms is not None and not shapes.elementwise:
        raise FormulaError("its stable forms are not elementwise.")
    stable = d.forms is not None or d.letter != "g"
    if not stable:  # stable forms were measured in their present form
        tidied(graph)
    pushed = _forward_mode(d, graph, shapes, example)
    return Writer(d, example, graph, pushed, shapes).text(functools.partial(docstring, d, shapes))


def traced(d: Definition, tensors: Sequence[Tensor]) -> tuple[Graph, Shapes, list[Tensor]]:
    """Return the graph of value and gradients, its shapes, and the tensors it was traced with: of one shape if that
    will do.
    """
    same = alike(tensors)
    if same is not None:
        try:
            graph = vjp_graph(d, same)
        except Exception:  # any error of the formula on tensors of another shape
            graph = None
        if graph is not None and is_pointwise(graph):
            return graph, shapes_of(graph, d.names, True), same
    graph = vjp_graph(d, tensors)
    return graph, shapes_of(graph, d.names, False), list(tensors)


def _forward_mode(d: Definition, graph: Graph, shapes: Shapes, tensors: Sequence[Tensor]) -> Graph | None:
    if not d.is_linear:
        return None
    if shapes.elementwise and (pushed := elementwise_jvp(graph)) is not None:
        return pushed
    try:
        pushed = jvp_graph(d, tensors)
    except FormulaError:
        return None
    tidied(pushed)
    return pushed
