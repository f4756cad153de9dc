"""`pullback.write`: the source of a plain `torch.autograd.Function`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.errors import FormulaError
from pullback.write.graphs import DerivativeGraph, elementwise_jvp, jvp_graph
from pullback.write.printer import VMAP_LINE, ClassPrinter, barrier_class
from pullback.write.shapes import Shapes, trace_vjp
from pullback.write.simplify import simplify_derivative
from pullback.write.spec import FunctionSpec, backward_spec, use_stable_forms
from pullback.write.target import example_of, spec_of
from pullback.write.test_file import test_source
from pullback.write.verify import has_vmap, require_equivalent


def write(target: Any, *inputs: Any, **kwargs: Any) -> str:
    """Return the source of a plain `torch.autograd.Function` that depends on torch alone.

    It has `forward`, `setup_context`, `backward`, `jvp` and `generate_vmap_rule`. It saves inputs and outputs alone, so
    that autograd can differentiate its backward. Before the source is returned, it is run beside the target at the
    inputs: value, gradient and second derivative agree.

    Args:
        target: an op, an `autograd.Function` class, of which only the forward is used, or a function in torch ops.
        inputs: the positional arguments of one example call. Its values matter: plain arguments become constants of
            the source. Without inputs, `write` searches for an example.
        kwargs: the keyword arguments of that call.

    Raises:
        OptionError: if the target is of another kind, or no example is found.
        FormulaError: if it cannot be written, or not with correct derivatives.
    """
    return written(target, inputs, kwargs).source


@dataclass(frozen=True, slots=True)
class Written:
    """The written source of a target.

    Attributes:
        spec: spec of the Function.
        tensors: tensors of the example call.
        source: the source text.
    """

    spec: FunctionSpec
    tensors: list[Tensor]
    source: str

    def test(self, module: str) -> str:
        """Return the text of a test file, for the source in a module of that name."""
        return test_source(self.spec, self.tensors, module, "def jvp(" in self.source, VMAP_LINE in self.source)


def written(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Written:
    """Write a target at a call; without arguments, at an example that is searched for. See `write`."""
    if not args and not kwargs:
        args, kwargs = example_of(target, getattr(target, "__name__", str(target)))
    try:
        spec, tensors = spec_of(target, args, kwargs)
        return Written(spec, tensors, _source(spec, tensors))
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:  # of the target, on its inputs
        name = getattr(target, "__name__", str(target))
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise FormulaError(f"{name} cannot be written: {reason}.") from error


def _source(spec: FunctionSpec, tensors: Sequence[Tensor]) -> str:
    try:
        classes = [_class(spec, tensors)]
        if spec.forms is not None:
            gradient = _class(backward_spec(spec), [*tensors, torch.ones_like(spec.outputs(tensors)[0])])
            classes[:0] = [barrier_class(spec.class_name), gradient]
    except FormulaError as error:
        text = str(error)
        raise FormulaError(text if text.startswith(spec.name) else f"{spec.name} cannot be written: {text}") from error
    body = "\n\n".join(classes)
    imports = ["import torch"]
    imports += ["import torch.nn.functional as F"] if re.search(r"\bF\.", body) else []
    source = "\n".join(imports) + "\n\n\n" + body
    require_equivalent(spec, source, tensors)
    return source if has_vmap(spec, source, tensors) else source.replace(f"    {VMAP_LINE}\n\n", "")


def _class(spec: FunctionSpec, tensors: Sequence[Tensor]) -> str:
    if spec.forms is not None:
        use_stable_forms(spec)
    graph, shapes, example = trace_vjp(spec, tensors)
    if spec.forms is not None and not shapes.elementwise:
        raise FormulaError("its stable forms are not elementwise.")
    if spec.forms is None and not spec.barrier:  # stable forms were measured in their present form
        simplify_derivative(graph)
    return ClassPrinter(spec, example, graph, _jvp(spec, graph, shapes, example), shapes).text()


def _jvp(
    spec: FunctionSpec, graph: DerivativeGraph, shapes: Shapes, tensors: Sequence[Tensor]
) -> DerivativeGraph | None:
    """The graph of the tangents; `None` if they do not exist or cannot be traced."""
    if not spec.is_linear:
        return None
    if shapes.elementwise and (jvp := elementwise_jvp(graph)) is not None:
        return jvp
    try:
        jvp = jvp_graph(spec, tensors)
    except FormulaError:
        return None
    simplify_derivative(jvp)
    return jvp
