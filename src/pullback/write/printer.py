"""The class: forward, setup_context, backward and jvp of the graphs of a definition."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, fx

from pullback.dtypes import has_derivative
from pullback.introspect import stable_notes
from pullback.write.expressions import ATOM, Text
from pullback.write.graphs import DerivativeGraph, Residuals, residuals_for, use_counts
from pullback.write.shapes import Shapes
from pullback.write.spec import FunctionSpec
from pullback.write.statements import GradientSlot, Namespace, StatementPrinter, guarded_gradients

_CONDITION_WIDTH = 92


class ClassPrinter:
    """Writes one class."""

    def __init__(
        self,
        d: FunctionSpec,
        tensors: Sequence[Tensor],
        backward: DerivativeGraph,
        forward_mode: DerivativeGraph | None,
        shapes: Shapes,
    ) -> None:
        self._d, self._shapes = d, shapes
        self._gradient = f"{d.class_name}Backward" if d.forms is not None else ""
        self._dtype = next((x.dtype for x in tensors if has_derivative(x)), tensors[0].dtype)
        self._backward, self._forward_mode = backward, forward_mode
        n = len(backward.outputs)
        self._outs = ["out"] if n == 1 else [f"out_{i}" for i in range(n)]
        self._live = d.connected
        self._short: dict[str, str] = {}

    def text(self, docstring: Callable[[Mapping[str, str]], str]) -> str:
        """Return the class; its docstring states the gradients that are a single expression."""
        kept = [self._kept(self._backward)]
        if self._gradient:
            kept[0] = Residuals(dict(zip(self._d.names, self._backward.inputs, strict=True)))
        if self._forward_mode is not None:
            kept.append(self._kept(self._forward_mode))
        blocks = ["generate_vmap_rule = True", self._forward(), self._setup(kept), self._pull(kept[0])]
        if self._forward_mode is not None:
            blocks.append(self._push(self._forward_mode, kept[1]))
        body = "\n\n".join([_quoted(docstring(self._short)), *blocks])
        return f"class {self._d.class_name}(torch.autograd.Function):\n{textwrap.indent(body, '    ')}\n"

    def _forward(self) -> str:
        graph = self._backward
        known = dict(zip(graph.inputs, self._d.names, strict=True))
        s = StatementPrinter(known, Namespace(self._d.names), self._dtype, self._d.names[0])
        s.compute(graph.outputs, use_counts(graph.outputs, graph.inputs))
        results = [s.show(out).text + (".clone()" if out in known else "") for out in graph.outputs]
        returned = f"return {', '.join(results)}"
        return _method("forward", self._d.names, [*self._checks(), *s.take(), returned])

    def _checks(self) -> list[str]:
        """Return the lines that refuse shapes for which the text does not hold."""
        conditions = self._shapes.conditions
        if self._d.only is not None:
            return [
                f"if {self._d.names[0]}.dtype != {self._d.only}:",
                f'    raise TypeError("{self._d.class_name} is written for {self._d.only}")',
            ]
        if not conditions:
            return []
        takes = ", ".join(
            f"{name} of shape [{', '.join(sizes)}]"
            for name, sizes in zip(self._d.names, self._shapes.inputs, strict=True)
        )
        held = _wrapped("if not (", " and ".join(conditions), "):")
        return [*held, f'    raise ValueError("{self._d.class_name} takes {takes}")']

    def _setup(self, kept: Sequence[Residuals]) -> str:
        saved = list(dict.fromkeys(name for one in kept for name in one.saved))
        shapes = list(dict.fromkeys(name for one in kept for name in one.shapes))
        used = {*saved, *shapes}
        lines = []
        if used.intersection(self._d.names):
            names = [name if name in used else "_" for name in self._d.names]
            lines.append(f"{', '.join(names)}{',' if len(names) == 1 else ''} = inputs")
            if len(names) == 1:
                lines[-1] = f"({names[0]},) = inputs"
        dead = [out for i, out in enumerate(self._outs) if i not in self._live]
        if used.intersection(self._outs) or dead:
            lines.append(f"{', '.join(self._outs)} = output")
        if saved:
            lines.append(f"ctx.save_for_backward({', '.join(saved)})")
            if len(kept) > 1 and kept[1].saved:
                lines.append(f"ctx.save_for_forward({', '.join(saved)})")
        lines += [f"ctx.{name}_shape = {name}.shape" for name in shapes]
        if dead:
            lines.append(f"ctx.mark_non_differentiable({', '.join(dead)})")
        self._saved = saved
        return _method("setup_context", ["ctx", "inputs", "output"], lines or ["pass"])

    def _pull(self, kept: Residuals) -> str:
        graph, d = self._backward, self._d
        cotangents = [d.letter] if len(self._outs) == 1 else [f"{d.letter}_{i}" for i in range(len(self._outs))]
        if self._gradient:
            applied = f"return {self._gradient}.apply({', '.join([*d.names, d.letter])})"
            return _method("backward", ["ctx", *cotangents], [*self._open(kept), applied])
        live = [cotangents[i] for i in self._live]
        s = self._statements(graph, kept, dict(zip(graph.given, live, strict=False)))
        results = {d.names[i]: node for i, node in zip(d.wanted, graph.results, strict=True) if node is not None}
        if len(d.names) > 1 and results:
            lines, returned = self._each_gradient(s, results, kept)
        else:
            s.compute(results.values(), use_counts(list(results.values()), list(s.known)))
            lines, shown = s.take(), {name: s.show(node).text for name, node in results.items()}
            self._short = {} if lines else shown
            returned = shown.get(d.names[0], "None")
        return _method("backward", ["ctx", *cotangents], [*self._open(kept), *lines, f"return {returned}"])

    def _each_gradient(
        self, s: StatementPrinter, results: dict[str, fx.Node], kept: Residuals
    ) -> tuple[list[str], str]:
        """Return the lines that compute each gradient that is asked for, and the result."""
        d = self._d
        slots = {name: GradientSlot(node, f"{d.letter}{name}", d.names.index(name)) for name, node in results.items()}
        lines, self._short = guarded_gradients(s, slots, lambda gradient, name: self._reduced(gradient, name, kept))
        return lines, ", ".join(slots[name].variable if name in slots else "None" for name in d.names)

    def _reduced(self, gradient: Text, name: str, kept: Residuals) -> str:
        """Return a gradient summed over the broadcast dimensions."""
        if not self._shapes.elementwise:
            return gradient.text
        shape = f"{name}.shape" if name in kept.saved else f"ctx.{name}_shape"
        return f"{gradient.at(ATOM)}.sum_to_size({shape})"

    def _push(self, graph: DerivativeGraph, kept: Residuals) -> str:
        d = self._d
        tangents = [f"t{name}" for name in d.names]
        if self._gradient and len(d.names) == 1:  # elementwise: the slope times the argument, for jvp and vjp
            applied = f"return {self._gradient}.apply({d.names[0]}, {tangents[0]})"
            return _method("jvp", ["ctx", *tangents], [*self._open(kept), applied])
        s = self._statements(graph, kept, {node: tangents[i] for node, i in zip(graph.given, d.wanted, strict=True)})
        results = [node for node in graph.results if node is not None]
        s.compute(results, use_counts(results, list(s.known)))
        lines = [*self._open(kept), *s.take()]
        moved = dict(zip(self._live, graph.results, strict=True))
        shown = [s.show(node).text if (node := moved.get(i)) is not None else "None" for i in range(len(self._outs))]
        return _method("jvp", ["ctx", *tangents], [*lines, f"return {', '.join(shown)}"])

    def _open(self, kept: Residuals) -> list[str]:
        """Return the line that unpacks the saved tensors; both directions save the same list."""
        if not kept.saved:
            return []
        names = [name if name in kept.saved else "_" for name in self._saved]
        lines = [f"({names[0]},) = ctx.saved_tensors" if len(names) == 1 else f"{', '.join(names)} = ctx.saved_tensors"]
        return lines + [f"{name} = {self._d.last}.apply({name})" for name in self._d.names[:-1] if self._d.last]

    def _statements(self, graph: DerivativeGraph, kept: Residuals, given: dict[fx.Node, str]) -> StatementPrinter:
        known = {node: name for name, node in kept.saved.items()} | given
        shapes = {node: f"ctx.{name}_shape" for name, node in kept.shapes.items()}
        taken = [*self._d.names, *self._outs, *given.values(), *(f"{self._d.letter}{name}" for name in self._d.names)]
        like = next(iter(given.values()), self._d.names[0])
        return StatementPrinter(known, Namespace(taken), self._dtype, like, shapes)

    def _kept(self, graph: DerivativeGraph) -> Residuals:
        """Return the tensors and shapes that a graph needs, including those for summing gradients of broadcasts."""
        names = dict(zip(graph.inputs, self._d.names, strict=True))
        for out, name in zip(graph.outputs, self._outs, strict=True):
            names.setdefault(out, name)
        summed = self._shapes.elementwise and len(self._d.names) > 1 and graph is self._backward
        results = zip(self._d.wanted, graph.results, strict=True)
        return residuals_for(graph, names, {self._d.names[i] for i, g in results if g is not None} if summed else ())


def _wrapped(start: str, text: str, end: str) -> list[str]:
    """Return a condition on one line, or on several if it is long."""
    if len(start) + len(text) + len(end) <= _CONDITION_WIDTH:
        return [f"{start}{text}{end}"]
    first, *others = text.split(" and ")
    return [start, f"    {first}", *(f"    and {other}" for other in others), end]


def _quoted(docstring: str) -> str:
    """Return a docstring in its quotes; the closing ones follow a multi-line text on a separate line."""
    text = docstring.strip()
    return f'"""{text}\n"""' if "\n" in text else f'"""{text}"""'


def _method(name: str, parameters: Sequence[str], lines: Sequence[str]) -> str:
    body = textwrap.indent("\n".join(lines), "    ")
    return f"@staticmethod\ndef {name}({', '.join(parameters)}):\n{body}"


_DOCSTRING_WIDTH = 88


def docstring(d: FunctionSpec, shapes: Shapes, gradients: Mapping[str, str]) -> str:
    """Return the docstring of a class; `gradients` are those that are one expression."""
    parts = [d.summary or f"The value and derivative of {d.name}."]
    parts.append("\n".join(["Shape:", *(f"    {line}" for line in _shapes(d, shapes))]))
    parts.append("\n".join(_filled(line) for line in _notes(d, gradients)))
    return "\n\n".join(part if "\n" in part else _filled(part) for part in parts if part) + "\n"


def _filled(text: str) -> str:
    indent = text[: len(text) - len(text.lstrip())]
    return textwrap.fill(text, _DOCSTRING_WIDTH, subsequent_indent=f"{indent}    " if indent else "")


def _shapes(d: FunctionSpec, shapes: Shapes) -> list[str]:
    if shapes.elementwise:
        given = ", ".join(d.names)
        how = "any shape" if len(d.names) == 1 else "any shapes that broadcast"
        return [f"{given}: {how}; the result has {'the same' if len(d.names) == 1 else 'the shape they broadcast to'}."]
    lines = [f"{name}: {_shown(sizes)}" for name, sizes in zip(d.names, shapes.inputs, strict=True)]
    outs = ["result"] if len(shapes.outputs) == 1 else [f"result {i}" for i in range(len(shapes.outputs))]
    return [*lines, *(f"{name}: {_shown(sizes)}" for name, sizes in zip(outs, shapes.outputs, strict=True))]


def _shown(sizes: Sequence[str]) -> str:
    return f"[{', '.join(sizes)}]"


_KINDS = {
    "derived": "The derivative is that of the forward.",
    "relaxed": "The value is a step; the derivative is that of its relaxation, whose value is not used.",
    "ruled": "The derivative is given by a rule, not derived from the forward.",
}


def _notes(d: FunctionSpec, gradients: Mapping[str, str]) -> list[str]:
    notes = [_KINDS[d.kind]]
    if gradients:
        notes = [f"Gradient of {name}: {text}" for name, text in gradients.items()] + ["", *notes]
    if d.forms is not None:
        notes = [*stable_notes(d.forms), "They compute in float64 inside where that says .double()."]
    if d.fixed:
        notes.append(f"Written for {', '.join(f'{name}={value!r}' for name, value in d.fixed.items())}.")
    return notes
