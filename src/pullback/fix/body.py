"""The lines of a new backward, in the author's names, and the residuals that they read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor, fx

from pullback.fix.model import CannotFixError, Derived, Kept
from pullback.write.expressions import ATOM, Text
from pullback.write.graphs import DerivativeGraph, Residuals, residuals_for
from pullback.write.shapes import Shapes, trace_vjp
from pullback.write.simplify import simplify_derivative
from pullback.write.spec import FunctionSpec
from pullback.write.statements import GradientSlot, Namespace, StatementPrinter, guarded_gradients


@dataclass(frozen=True, slots=True)
class Wording:
    """Names for a new backward.

    Attributes:
        ctx: the context.
        cotangents: of the outputs.
        places: for each tensor its position among the arguments of the forward.
        outputs: of outputs that can be saved; empty if they cannot.
        parameters: of the forward; other values get other names.
    """

    ctx: str
    cotangents: tuple[str, ...]
    places: tuple[int, ...]
    outputs: tuple[str, ...]
    parameters: tuple[str, ...]


class Backward:
    """The backward of a definition for some tensors, which have these names in the text."""

    def __init__(self, d: FunctionSpec, tensors: Sequence[Tensor], wording: Wording) -> None:
        graph, self.shapes, _ = trace_vjp(d, tensors)
        if wording.outputs:
            simplify_derivative(graph)
        else:
            graph = _shortest(graph)
        self._d, self._graph, self._wording = d, graph, wording
        self._dtype = tensors[d.active_inputs[0]].dtype
        results = zip(d.active_inputs, graph.derivatives, strict=True)
        self._results = {d.names[i]: node for i, node in results if node is not None}
        if not self._results:
            raise CannotFixError("no gradient leads from its outputs to its inputs")

    @property
    def is_elementwise(self) -> bool:
        """Whether it holds for every shape."""
        return self.shapes.elementwise

    def derived(self, guarded: bool = False) -> Derived:
        """Return it as text; with `guarded`, a check of the shapes that it holds for comes first."""
        kept = self._kept(guarded)
        shapes = {name: f"{self._wording.ctx}.{name}_shape" for name in kept.shapes}
        lines = self._opened(kept)
        if guarded:
            lines += _guard(self._d, self.shapes, shapes)
        lines += self._gradients(kept, shapes)
        return Derived(
            parameters=(self._wording.ctx, *self._wording.cotangents),
            body=tuple(lines),
            kept=(*map(self._place, kept.saved), *(self._shape(name) for name in kept.shapes)),
            only=_told(self._d, self.shapes) if guarded else "",
        )

    def _gradients(self, kept: Residuals, shapes: Mapping[str, str]) -> list[str]:
        names = self._names()
        s = self._statements(kept, shapes, names)
        slots = {
            name: GradientSlot(node, names.fresh(f"g{name}"), self._position(name))
            for name, node in self._results.items()
        }
        reduced = partial(self._reduced, shapes)
        if len(slots) > 1:
            lines, _ = guarded_gradients(s, slots, reduced, self._wording.ctx)
            return [*lines, f"return {self._tuple({slot.position: slot.variable for slot in slots.values()})}"]
        [(name, slot)] = slots.items()
        s.compute([slot.node])
        lines = s.flush()
        return [*lines, f"return {self._tuple({slot.position: reduced(s.show(slot.node), name)})}"]

    def _tuple(self, gradients: Mapping[int, str]) -> str:
        return ", ".join(gradients.get(i, "None") for i in range(len(self._wording.parameters)))

    def _position(self, name: str) -> int:
        return self._wording.places[self._d.names.index(name)]

    def _reduced(self, shapes: Mapping[str, str], gradient: Text, name: str) -> str:
        """Return a gradient summed over the broadcast dimensions."""
        if not self.is_elementwise or len(self._d.names) == 1:
            return gradient.text
        return f"{gradient.at(ATOM)}.sum_to_size({shapes.get(name, f'{name}.shape')})"

    def _opened(self, kept: Residuals) -> list[str]:
        if not kept.saved:
            return []
        names = list(kept.saved)
        left = f"({names[0]},)" if len(names) == 1 else ", ".join(names)
        return [f"{left} = {self._wording.ctx}.saved_tensors"]

    def _names(self) -> Namespace:
        w = self._wording
        return Namespace([w.ctx, *w.cotangents, *self._d.names, *w.outputs, *w.parameters])

    def _statements(self, kept: Residuals, shapes: Mapping[str, str], names: Namespace) -> StatementPrinter:
        cotangents = [self._wording.cotangents[i] for i in self._d.active_outputs]
        given = dict(zip(self._graph.seeds, cotangents, strict=True))
        known = {node: name for name, node in kept.saved.items()} | given
        read = {node: shapes[name] for name, node in kept.shapes.items()}
        return StatementPrinter(known, names, self._dtype, cotangents[0], read)

    def _kept(self, guarded: bool) -> Residuals:
        names: dict[fx.Node, str] = dict(zip(self._graph.inputs, self._d.names, strict=True))
        for out, name in zip(self._graph.outputs, self._wording.outputs, strict=False):
            names.setdefault(out, name)
        summed = self.is_elementwise and len(self._d.names) > 1
        return residuals_for(self._graph, names, self._d.names if guarded else list(self._results) if summed else ())

    def _place(self, name: str) -> Kept:
        if name in self._d.names:
            return Kept("tensor", "input", self._position(name), self._parameter(name))
        return Kept("tensor", "output", self._wording.outputs.index(name), name)

    def _shape(self, name: str) -> Kept:
        return Kept("shape", "input", self._position(name), self._parameter(name), f"{name}_shape")

    def _parameter(self, name: str) -> str:
        return self._wording.parameters[self._position(name)]


def _shortest(graph: DerivativeGraph) -> DerivativeGraph:
    """Return a graph without its outputs, which cannot be saved, in the shorter of two forms.

    One form shares subexpressions between the recomputed value and the derivative.
    """
    other = graph.copy()
    simplify_derivative(graph)
    graph.drop_outputs()
    other.drop_outputs()
    simplify_derivative(other)
    return other if other.op_count() < graph.op_count() else graph


def _guard(d: FunctionSpec, shapes: Shapes, attributes: Mapping[str, str]) -> list[str]:
    condition = " and ".join(shapes.conditions)
    for name, attribute in attributes.items():
        condition = re.sub(rf"\b{name}\.dim\(\)", f"len({attribute})", condition)
        condition = re.sub(rf"\b{name}\.shape\b", attribute, condition)
    return [f"if not ({condition}):", f'    raise ValueError("the gradient of {d.name} is for {_told(d, shapes)}")']


def _told(d: FunctionSpec, shapes: Shapes) -> str:
    pairs = zip(d.names, shapes.inputs, strict=True)
    return ", ".join(f"{name} of shape [{', '.join(sizes)}]" for name, sizes in pairs)
