"""The printed class: forward, setup_context, backward and jvp of the graphs of a specification, and its docstring."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from torch import Tensor, fx

from pullback.dtypes import has_derivative
from pullback.introspect import stable_notes
from pullback.write.expressions import ATOM, Expression
from pullback.write.graphs import DerivativeGraph, Residuals, residuals_for
from pullback.write.shapes import Shapes
from pullback.write.spec import FunctionSpec
from pullback.write.statements import GradientSlot, Namespace, StatementPrinter, guarded_gradients

_CONDITION_WIDTH = 92
_DOCSTRING_WIDTH = 88
VMAP_LINE = "generate_vmap_rule = True"
"""Asks PyTorch to batch the class under `vmap`."""


class ClassPrinter:
    """Prints one `torch.autograd.Function`.

    Args:
        spec: spec of the Function.
        tensors: the tensors it was traced with.
        vjp: the graph of value and gradients.
        jvp: the graph of value and tangents, if there is one.
        shapes: the shapes for which the graphs hold.
    """

    def __init__(
        self,
        spec: FunctionSpec,
        tensors: Sequence[Tensor],
        vjp: DerivativeGraph,
        jvp: DerivativeGraph | None,
        shapes: Shapes,
    ) -> None:
        self._spec, self._shapes = spec, shapes
        self._vjp, self._jvp = vjp, jvp
        self._dtype = next((x.dtype for x in tensors if has_derivative(x)), tensors[0].dtype)
        n = len(vjp.outputs)
        self._outs = ["out"] if n == 1 else [f"out_{i}" for i in range(n)]
        self._gradient_class = f"{spec.class_name}Backward" if spec.forms is not None else ""
        self._for_vjp = self._residuals(vjp)
        if self._gradient_class:  # which takes all inputs, and the cotangent
            self._for_vjp = Residuals(dict(zip(spec.names, vjp.inputs, strict=True)))
        self._for_jvp = self._residuals(jvp) if jvp is not None else Residuals()
        both = (self._for_vjp, self._for_jvp)
        self._saved = list(dict.fromkeys(name for one in both for name in one.saved))
        self._with_shape = list(dict.fromkeys(name for one in both for name in one.shapes))

    def text(self) -> str:
        """Return the class; its docstring states the gradients that are a single expression."""
        forward, setup_context = self._forward_method(), self._setup_context_method()
        backward, gradients = self._backward_method()
        blocks = [VMAP_LINE, forward, setup_context, backward]
        if self._jvp is not None:
            blocks.append(self._jvp_method(self._jvp))
        body = "\n\n".join([_quoted(_docstring(self._spec, self._shapes, gradients)), *blocks])
        return f"class {self._spec.class_name}(torch.autograd.Function):\n{textwrap.indent(body, '    ')}\n"

    def _forward_method(self) -> str:
        graph, names = self._vjp, self._spec.names
        known = dict(zip(graph.inputs, names, strict=True))
        s = StatementPrinter(known, Namespace(names), self._dtype, names[0])
        s.compute(graph.outputs)
        results = [s.show(out).text + (".clone()" if out in known else "") for out in graph.outputs]
        return _method("forward", names, [*self._checks(), *s.flush(), f"return {', '.join(results)}"])

    def _checks(self) -> list[str]:
        """Lines that refuse dtypes and shapes for which the text does not hold."""
        spec = self._spec
        if spec.dtype is not None:
            return [
                f"if {spec.names[0]}.dtype != {spec.dtype}:",
                f'    raise TypeError("{spec.class_name} is written for {spec.dtype}")',
            ]
        if not self._shapes.conditions:
            return []
        takes = ", ".join(
            f"{name} of shape {_shape_text(sizes)}" for name, sizes in zip(spec.names, self._shapes.inputs, strict=True)
        )
        condition = _wrapped("if not (", " and ".join(self._shapes.conditions), "):")
        return [*condition, f'    raise ValueError("{spec.class_name} takes {takes}")']

    def _setup_context_method(self) -> str:
        names, outs = self._spec.names, self._outs
        used = {*self._saved, *self._with_shape}
        constant = [out for i, out in enumerate(outs) if i not in self._spec.active_outputs]
        lines = []
        if used.intersection(names):
            lines.append(f"{_unpacked([name if name in used else '_' for name in names])} = inputs")
        if used.intersection(outs) or constant:
            lines.append(f"{', '.join(outs)} = output")
        if self._saved:
            lines.append(f"ctx.save_for_backward({', '.join(self._saved)})")
            if self._for_jvp.saved:
                lines.append(f"ctx.save_for_forward({', '.join(self._saved)})")
        lines += [f"ctx.{name}_shape = {name}.shape" for name in self._with_shape]
        if constant:
            lines.append(f"ctx.mark_non_differentiable({', '.join(constant)})")
        return _method("setup_context", ["ctx", "inputs", "output"], lines or ["pass"])

    def _backward_method(self) -> tuple[str, Mapping[str, str]]:
        """The backward, and the gradients that are a single expression."""
        spec, graph = self._spec, self._vjp
        g = spec.cotangent
        cotangents = [g] if len(self._outs) == 1 else [f"{g}_{i}" for i in range(len(self._outs))]
        opened = self._unpack(self._for_vjp)
        if self._gradient_class:
            applied = f"return {self._gradient_class}.apply({', '.join([*spec.names, g])})"
            return _method("backward", ["ctx", *cotangents], [*opened, applied]), {}
        active = [cotangents[i] for i in spec.active_outputs]
        s = self._statements(self._for_vjp, dict(zip(graph.seeds, active, strict=False)))
        pairs = zip(spec.active_inputs, graph.derivatives, strict=True)
        results = {spec.names[i]: node for i, node in pairs if node is not None}
        if len(spec.names) > 1 and results:
            slots = {name: GradientSlot(node, f"{g}{name}", spec.names.index(name)) for name, node in results.items()}
            lines, single = guarded_gradients(s, slots, self._reduced)
            returned = ", ".join(slots[name].variable if name in slots else "None" for name in spec.names)
        else:
            s.compute(list(results.values()))
            lines, shown = s.flush(), {name: s.show(node).text for name, node in results.items()}
            single = {} if lines else shown
            returned = shown.get(spec.names[0], "None")
        return _method("backward", ["ctx", *cotangents], [*opened, *lines, f"return {returned}"]), single

    def _reduced(self, gradient: Expression, name: str) -> str:
        """A gradient summed over the broadcast dimensions."""
        if not self._shapes.elementwise:
            return gradient.text
        shape = f"{name}.shape" if name in self._for_vjp.saved else f"ctx.{name}_shape"
        return f"{gradient.at(ATOM)}.sum_to_size({shape})"

    def _jvp_method(self, graph: DerivativeGraph) -> str:
        spec = self._spec
        tangents = [f"t{name}" for name in spec.names]
        opened = self._unpack(self._for_jvp)
        if self._gradient_class and len(spec.names) == 1:  # elementwise: the slope times the argument, for jvp and vjp
            applied = f"return {self._gradient_class}.apply({spec.names[0]}, {tangents[0]})"
            return _method("jvp", ["ctx", *tangents], [*opened, applied])
        seeds = {node: tangents[i] for node, i in zip(graph.seeds, spec.active_inputs, strict=True)}
        s = self._statements(self._for_jvp, seeds)
        s.compute([node for node in graph.derivatives if node is not None])
        moved = dict(zip(spec.active_outputs, graph.derivatives, strict=True))
        shown = [s.show(node).text if (node := moved.get(i)) is not None else "None" for i in range(len(self._outs))]
        return _method("jvp", ["ctx", *tangents], [*opened, *s.flush(), f"return {', '.join(shown)}"])

    def _unpack(self, residuals: Residuals) -> list[str]:
        """The line that unpacks the saved tensors, a list that backward and jvp share, and those for the barrier."""
        if not residuals.saved:
            return []
        names = [name if name in residuals.saved else "_" for name in self._saved]
        lines = [f"{_unpacked(names)} = ctx.saved_tensors"]
        barrier = self._spec.barrier
        return lines + [f"{name} = {barrier}.apply({name})" for name in self._spec.names[:-1] if barrier]

    def _statements(self, residuals: Residuals, seeds: dict[fx.Node, str]) -> StatementPrinter:
        spec = self._spec
        known = {node: name for name, node in residuals.saved.items()} | seeds
        shapes = {node: f"ctx.{name}_shape" for name, node in residuals.shapes.items()}
        taken = [*spec.names, *self._outs, *seeds.values(), *(f"{spec.cotangent}{name}" for name in spec.names)]
        like = next(iter(seeds.values()), spec.names[0])
        return StatementPrinter(known, Namespace(taken), self._dtype, like, shapes)

    def _residuals(self, graph: DerivativeGraph) -> Residuals:
        """The tensors and shapes that a graph needs, including those for summing gradients of broadcasts."""
        spec = self._spec
        names = dict(zip(graph.inputs, spec.names, strict=True))
        for out, name in zip(graph.outputs, self._outs, strict=True):
            names.setdefault(out, name)
        if not (self._shapes.elementwise and len(spec.names) > 1 and graph is self._vjp):
            return residuals_for(graph, names)
        pairs = zip(spec.active_inputs, graph.derivatives, strict=True)
        return residuals_for(graph, names, {spec.names[i] for i, gradient in pairs if gradient is not None})


def barrier_class(name: str) -> str:
    """The source of a Function that is the identity and raises where it is differentiated.

    `once_differentiable` would not do: it looks at cotangents alone, and where these are constants the next derivative
    is silently lost.
    """
    return _BARRIER.format(name=name)


_BARRIER = '''class {name}Last(torch.autograd.Function):
    """The identity, which is not differentiated: the forms of {name} end with the second derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        raise NotImplementedError("{name} has no third derivative")
'''


def _unpacked(names: Sequence[str]) -> str:
    return f"({names[0]},)" if len(names) == 1 else ", ".join(names)


def _wrapped(start: str, text: str, end: str) -> list[str]:
    """A condition on one line, or on several if it is long."""
    if len(start) + len(text) + len(end) <= _CONDITION_WIDTH:
        return [f"{start}{text}{end}"]
    first, *others = text.split(" and ")
    return [start, f"    {first}", *(f"    and {other}" for other in others), end]


def _quoted(docstring: str) -> str:
    """A docstring in its quotes; the closing ones follow a multi-line text on a separate line."""
    text = docstring.strip()
    return f'"""{text}\n"""' if "\n" in text else f'"""{text}"""'


def _method(name: str, parameters: Sequence[str], lines: Sequence[str]) -> str:
    body = textwrap.indent("\n".join(lines), "    ")
    return f"@staticmethod\ndef {name}({', '.join(parameters)}):\n{body}"


def _docstring(spec: FunctionSpec, shapes: Shapes, gradients: Mapping[str, str]) -> str:
    """Description, shapes, derivative, and the values that the text is specialised on."""
    parts = [spec.summary or f"The value and derivative of {spec.name}."]
    parts.append("\n".join(["Shape:", *(f"    {line}" for line in _shape_lines(spec, shapes))]))
    if notes := _notes(spec, gradients):
        parts.append("\n".join(map(_filled, notes)))
    return "\n\n".join(part if "\n" in part else _filled(part) for part in parts)


def _filled(text: str) -> str:
    indent = text[: len(text) - len(text.lstrip())]
    return textwrap.fill(text, _DOCSTRING_WIDTH, subsequent_indent=f"{indent}    " if indent else "")


def _shape_lines(spec: FunctionSpec, shapes: Shapes) -> list[str]:
    if shapes.elementwise:
        single = len(spec.names) == 1
        how = "any shape" if single else "any shapes that broadcast"
        result = "the same" if single else "the shape they broadcast to"
        return [f"{', '.join(spec.names)}: {how}; the result has {result}."]
    lines = [f"{name}: {_shape_text(sizes)}" for name, sizes in zip(spec.names, shapes.inputs, strict=True)]
    outs = ["result"] if len(shapes.outputs) == 1 else [f"result {i}" for i in range(len(shapes.outputs))]
    return [*lines, *(f"{name}: {_shape_text(sizes)}" for name, sizes in zip(outs, shapes.outputs, strict=True))]


def _shape_text(sizes: Sequence[str]) -> str:
    return f"[{', '.join(sizes)}]"


_KINDS = {
    "relaxed": "The value is a step; the derivative is that of its relaxation, whose value is not used.",
    "ruled": "The derivative is given by a rule, not derived from the forward.",
}


def _notes(spec: FunctionSpec, gradients: Mapping[str, str]) -> list[str]:
    formulas = [f"Gradient of {name}: {text}" for name, text in gradients.items()]
    notes = [_KINDS[spec.kind]] if spec.kind in _KINDS else []
    if spec.forms is not None:
        formulas = []
        notes = [*stable_notes(spec.forms), "They compute in float64 inside where that says .double()."]
    if spec.constants:
        notes.append(f"Written for {', '.join(f'{name}={value!r}' for name, value in spec.constants.items())}.")
    return [*formulas, *[""] * bool(formulas and notes), *notes]
