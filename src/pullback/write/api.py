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
from pullback.write.graphs import DerivativeGraph, elementwise_jvp, jvp_graph
from pullback.write.printer import ClassPrinter, docstring
from pullback.write.shapes import Shapes, trace_vjp
from pullback.write.simplify import simplify_derivative
from pullback.write.spec import FunctionSpec, backward_spec, barrier_class, use_stable_forms
from pullback.write.target import example_of, spec_of
from pullback.write.test_file import test_source
from pullback.write.verify import has_vmap, require_equivalent


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

    definition: FunctionSpec
    tensors: list[Tensor]
    source: str

    def test(self, module: str) -> str:
        """Return the text of a test file, for the source in a module of that name."""
        return test_source(self.definition, self.tensors, module, "def jvp(" in self.source, _VMAP in self.source)


def written(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Written:
    """Write a target for a call, or for one that is found if there are no arguments; see `write`."""
    if not args and not kwargs:
        args, kwargs = example_of(target, getattr(target, "__name__", str(target)))
    try:
        d, tensors = spec_of(target, args, kwargs)
        return Written(d, tensors, _source(d, tensors))
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:  # of the target, on its inputs
        name = getattr(target, "__name__", str(target))
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise FormulaError(f"{name} cannot be written: {reason}.") from error


def _source(d: FunctionSpec, tensors: Sequence[Tensor]) -> str:
    try:
        classes = [_class(d, tensors)]
        if d.forms is not None:
            gradient = _class(backward_spec(d), [*tensors, torch.ones_like(d.outputs(tensors)[0])])
            classes[:0] = [barrier_class(d.class_name), gradient]
    except FormulaError as error:
        text = str(error)
        raise FormulaError(text if text.startswith(d.name) else f"{d.name} cannot be written: {text}") from error
    body = "\n\n".join(classes)
    imports = ["import torch"]
    imports += ["import torch.nn.functional as F"] if re.search(r"\bF\.", body) else []
    source = "\n".join(imports) + "\n\n\n" + body
    require_equivalent(d, source, tensors)
    return source if has_vmap(d, source, tensors) else source.replace(_VMAP, "")


def _class(d: FunctionSpec, tensors: Sequence[Tensor]) -> str:
    if d.forms is not None:
        use_stable_forms(d)
    graph, shapes, example = trace_vjp(d, tensors)
    if d.forms is not None and not shapes.elementwise:
        raise FormulaError("its stable forms are not elementwise.")
    stable = d.forms is not None or d.letter != "g"
    if not stable:  # stable forms were measured in their present form
        simplify_derivative(graph)
    pushed = _forward_mode(d, graph, shapes, example)
    return ClassPrinter(d, example, graph, pushed, shapes).text(functools.partial(docstring, d, shapes))


def _forward_mode(
    d: FunctionSpec, graph: DerivativeGraph, shapes: Shapes, tensors: Sequence[Tensor]
) -> DerivativeGraph | None:
    if not d.is_linear:
        return None
    if shapes.elementwise and (pushed := elementwise_jvp(graph)) is not None:
        return pushed
    try:
        pushed = jvp_graph(d, tensors)
    except FormulaError:
        return None
    simplify_derivative(pushed)
    return pushed
