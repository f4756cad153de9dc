"""A new backward for a Function: derived from its forward at one example call, and put into the author's names.

The forward is traced, differentiated and simplified as `pullback write` does it; `NewBackward` holds the text. Numbers
among the arguments become variables again (`number_arguments`). Where the formula depends on the shapes, a check of
them comes first.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.check.subject import Subject
from pullback.errors import PullbackError
from pullback.fix.dataflow import names_assigned, unused_name
from pullback.fix.number_arguments import NonTensor, with_variables
from pullback.fix.patch import CannotFixError, NewBackward, SavedValue
from pullback.fix.source import SourceNames, mutable_captures, source_names
from pullback.write.expressions import ATOM, Expression
from pullback.write.graphs import DerivativeGraph, Residuals, residuals_for
from pullback.write.shapes import Shapes, trace_vjp
from pullback.write.simplify import simplify_derivative
from pullback.write.spec import FunctionSpec
from pullback.write.statements import GradientSlot, Namespace, StatementPrinter, guarded_gradients
from pullback.write.target import as_op, single_precision_call, spec_of

_IMPORTED = {"torch", "F"}


def derive(subject: Subject, args: Sequence[Any]) -> NewBackward:
    """Derive the backward of a Function from its forward.

    Args:
        subject: the Function.
        args: arguments of a call that works.

    Raises:
        CannotFixError: if it cannot be derived, or not as text.
    """
    names = source_names(subject)
    args, _ = single_precision_call(subject.target, tuple(args), {})
    try:
        bound = as_op(subject.target)._signature.bind(*args)
        bound.apply_defaults()  # a default value is a constant of the trace, too
        backward = _derived(subject, names, bound.args)
        assert subject.source is not None  # by `source_names`
        captures = mutable_captures(subject.target.forward, subject.source.methods["forward"])
    except PullbackError as error:
        raise CannotFixError(_reason(subject, str(error))) from error
    except CannotFixError:
        raise
    except Exception as error:  # any error of tracing the author's forward
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise CannotFixError(f"its forward cannot be trace_vjp: {reason}") from error
    return replace(backward, valid_for=", ".join([*filter(None, [backward.valid_for]), *captures]))


def _derived(subject: Subject, names: SourceNames, args: Sequence[Any]) -> NewBackward:
    trace = partial(_traced, subject, names)
    first = trace(args)

    def unguarded(args: Sequence[Any]) -> NewBackward:
        return trace(args).text()

    is_special = not first.is_elementwise and (
        _depends_on_sizes(first.shapes) or depends_on_rank(unguarded, subject.call, args)
    )

    def guarded(args: Sequence[Any]) -> NewBackward:
        return trace(args).text(is_special)

    non_tensors = [
        NonTensor(i, name, unused_name(name, _reserved(names)))
        for i, (name, a) in enumerate(zip(names.parameters, args, strict=False))
        if not isinstance(a, Tensor)
    ]
    return with_variables(guarded, subject.call, args, non_tensors, names.ctx) if non_tensors else guarded(args)


def _traced(subject: Subject, names: SourceNames, args: Sequence[Any]) -> TracedBackward:
    for name, a in zip(names.parameters, args, strict=False):
        if not isinstance(a, Tensor) and any(isinstance(leaf, Tensor) for leaf in _torch.tree_leaves(a)[0]):
            raise CannotFixError(f"{name} holds tensors, which autograd does not track")
    d, tensors = spec_of(subject.target, tuple(args), {})
    positions = tuple(i for i, a in enumerate(args) if isinstance(a, Tensor))
    count = len(d.outputs(tensors))
    cotangents = names.cotangents if len(names.cotangents) == count else _cotangents(count)
    d.names = [unused_name(names.parameters[i], _reserved(names)) for i in positions]
    outputs = _savable_outputs(subject, names, count, [names.parameters[i] for i in positions])
    return TracedBackward(d, tensors, BackwardNames(names.ctx, cotangents, positions, outputs, names.parameters))


def _cotangents(count: int) -> tuple[str, ...]:
    return ("g",) if count == 1 else tuple(f"g_{i}" for i in range(count))


def _reserved(names: SourceNames) -> set[str]:
    """Namespace that a variable of the backward may not have."""
    return {names.ctx, *(names.cotangents or ("g",)), *_IMPORTED}


def _savable_outputs(subject: Subject, names: SourceNames, count: int, tensors: Sequence[str]) -> tuple[str, ...]:
    """Namespace of outputs that can be saved: in an old-style forward variables, saved just before the return."""
    taken = {names.ctx, *(names.cotangents or _cotangents(count)), *names.parameters, *_IMPORTED}
    if not names.is_old:
        outputs = ("out",) if count == 1 else tuple(f"out_{i}" for i in range(count))
        return () if taken & set(outputs) else outputs
    assert subject.source is not None  # by `source_names`
    rebound = names_assigned(subject.source.methods["forward"]) & set(tensors)
    return () if rebound or taken & set(names.outputs) or len(names.outputs) != count else names.outputs


def _reason(subject: Subject, text: str) -> str:
    name = getattr(subject.target, "__name__", subject.name)
    return text.removeprefix(f"{name} cannot be written: ").removesuffix(".")


@dataclass(frozen=True, slots=True)
class BackwardNames:
    """Namespace for a new backward.

    Attributes:
        ctx: the context.
        cotangents: cotangents of the outputs.
        positions: for each tensor its position among the arguments of the forward.
        outputs: outputs that can be saved; empty if they cannot.
        parameters: parameters of the forward, whose names no other value gets.
    """

    ctx: str
    cotangents: tuple[str, ...]
    positions: tuple[int, ...]
    outputs: tuple[str, ...]
    parameters: tuple[str, ...]


class TracedBackward:
    """Graph of the derivative of a definition at some tensors, and its text."""

    def __init__(self, d: FunctionSpec, tensors: Sequence[Tensor], names: BackwardNames) -> None:
        graph, self.shapes, _ = trace_vjp(d, tensors)
        if names.outputs:
            simplify_derivative(graph)
        else:
            graph = _shortest(graph)
        self._d, self._graph, self._names = d, graph, names
        self._dtype = tensors[d.active_inputs[0]].dtype
        results = zip(d.active_inputs, graph.derivatives, strict=True)
        self._results = {d.names[i]: node for i, node in results if node is not None}
        if not self._results:
            raise CannotFixError("no gradient flows from its outputs to its inputs")

    @property
    def is_elementwise(self) -> bool:
        """Whether it is right for every shape."""
        return self.shapes.elementwise

    def text(self, guarded: bool = False) -> NewBackward:
        """Write the backward; with `guarded`, it checks the shapes for which it is right first."""
        residuals = self._residuals(guarded)
        shapes = {name: f"{self._names.ctx}.{name}_shape" for name in residuals.shapes}
        lines = self._unpacking(residuals)
        if guarded:
            lines += _guard(self._d, self.shapes, shapes)
        lines += self._gradients(residuals, shapes)
        return NewBackward(
            parameters=(self._names.ctx, *self._names.cotangents),
            body=tuple(lines),
            saved=(*map(self._saved_tensor, residuals.saved), *map(self._saved_shape, residuals.shapes)),
            valid_for=_described(self._d, self.shapes) if guarded else "",
        )

    def _gradients(self, residuals: Residuals, shapes: Mapping[str, str]) -> list[str]:
        fresh = self._fresh_names()
        s = self._statements(residuals, shapes, fresh)
        slots = {
            name: GradientSlot(node, fresh.fresh(f"g{name}"), self._position(name))
            for name, node in self._results.items()
        }
        reduced = partial(self._reduced, shapes)
        if len(slots) > 1:
            lines, _ = guarded_gradients(s, slots, reduced, self._names.ctx)
            return [*lines, f"return {self._tuple({slot.position: slot.variable for slot in slots.values()})}"]
        [(name, slot)] = slots.items()
        s.compute([slot.node])
        lines = s.flush()
        return [*lines, f"return {self._tuple({slot.position: reduced(s.show(slot.node), name)})}"]

    def _tuple(self, gradients: Mapping[int, str]) -> str:
        return ", ".join(gradients.get(i, "None") for i in range(len(self._names.parameters)))

    def _position(self, name: str) -> int:
        return self._names.positions[self._d.names.index(name)]

    def _reduced(self, shapes: Mapping[str, str], gradient: Expression, name: str) -> str:
        """Sum a gradient over the dimensions along which its input was broadcast."""
        if not self.is_elementwise or len(self._d.names) == 1:
            return gradient.text
        return f"{gradient.at(ATOM)}.sum_to_size({shapes.get(name, f'{name}.shape')})"

    def _unpacking(self, residuals: Residuals) -> list[str]:
        if not residuals.saved:
            return []
        names = list(residuals.saved)
        left = f"({names[0]},)" if len(names) == 1 else ", ".join(names)
        return [f"{left} = {self._names.ctx}.saved_tensors"]

    def _fresh_names(self) -> Namespace:
        n = self._names
        return Namespace([n.ctx, *n.cotangents, *self._d.names, *n.outputs, *n.parameters])

    def _statements(self, residuals: Residuals, shapes: Mapping[str, str], fresh: Namespace) -> StatementPrinter:
        cotangents = [self._names.cotangents[i] for i in self._d.active_outputs]
        given = dict(zip(self._graph.seeds, cotangents, strict=True))
        known = {node: name for name, node in residuals.saved.items()} | given
        read = {node: shapes[name] for name, node in residuals.shapes.items()}
        return StatementPrinter(known, fresh, self._dtype, cotangents[0], read)

    def _residuals(self, guarded: bool) -> Residuals:
        names: dict[fx.Node, str] = dict(zip(self._graph.inputs, self._d.names, strict=True))
        for out, name in zip(self._graph.outputs, self._names.outputs, strict=False):
            names.setdefault(out, name)
        summed = self.is_elementwise and len(self._d.names) > 1
        return residuals_for(self._graph, names, self._d.names if guarded else list(self._results) if summed else ())

    def _saved_tensor(self, name: str) -> SavedValue:
        if name in self._d.names:
            return SavedValue("tensor", "input", self._position(name), self._parameter(name))
        return SavedValue("tensor", "output", self._names.outputs.index(name), name)

    def _saved_shape(self, name: str) -> SavedValue:
        return SavedValue("shape", "input", self._position(name), self._parameter(name), f"{name}_shape")

    def _parameter(self, name: str) -> str:
        return self._names.parameters[self._position(name)]


def _shortest(graph: DerivativeGraph) -> DerivativeGraph:
    """The shorter of two forms of a graph whose outputs cannot be saved, and are dropped.

    Simplified before the outputs are dropped, the derivative is written in terms of the recomputed outputs; simplified
    afterwards, it shares nothing with them.
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
    return [
        f"if not ({condition}):",
        f'    raise ValueError("the gradient of {d.name} is for {_described(d, shapes)}")',
    ]


def _described(d: FunctionSpec, shapes: Shapes) -> str:
    pairs = zip(d.names, shapes.inputs, strict=True)
    return ", ".join(f"{name} of shape [{', '.join(sizes)}]" for name, sizes in pairs)


def _depends_on_sizes(shapes: Shapes) -> bool:
    """Whether a text is right for some sizes alone: one is a number, or is less than another."""
    for condition in shapes.conditions:
        ordered = any(isinstance(node, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for node in ast.walk(ast.parse(condition)))
        if ordered or (".dim()" not in condition and condition.rpartition("== ")[2][:1] in "(0123456789"):
            return True
    return False


def depends_on_rank(
    derive: Callable[[Sequence[Any]], NewBackward], call: Callable[..., Any], args: Sequence[Any]
) -> bool:
    """Whether the forward takes tensors of one dimension more or less for which the backward has another text.

    Args:
        derive: derives the backward at a call.
        call: the forward.
        args: arguments of the example.
    """
    body = derive(args).body
    return any(_runs(call, other) and not _has_body(derive, other, body) for other in _other_ranks(args))


def _has_body(derive: Callable[[Sequence[Any]], NewBackward], args: Sequence[Any], body: tuple[str, ...]) -> bool:
    try:
        return derive(args).body == body
    except Exception:  # any error of tracing: the derivative there is unknown
        return False


def _other_ranks(args: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the arguments with one tensor, or all of them, of one dimension more and of one less."""
    positions = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
    for chosen in [positions, *([i] for i in positions if len(positions) > 1)]:
        yield [torch.stack([a, a]) if i in chosen else a for i, a in enumerate(args)]
        if all(args[i].dim() > (chosen != positions) for i in chosen):  # one vector alone does not become a number
            yield [a[0] if i in chosen else a for i, a in enumerate(args)]


def _runs(call: Callable[..., Any], args: Sequence[Any]) -> bool:
    try:
        with torch.no_grad():
            call(*args)
    except Exception:  # any error of a forward at inputs that it does not take
        return False
    return True
