"""The written docstring: description, shapes, derivative, and the values that the text is specialised on."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from pullback.introspect import stable_notes
from pullback.write.definition import Definition
from pullback.write.shapes import Shapes

_WIDTH = 88


def docstring(d: Definition, shapes: Shapes, gradients: Mapping[str, str]) -> str:
    """Return the docstring of a class; `gradients` are those that are one expression."""
    parts = [d.summary or f"The value and derivative of {d.name}."]
    parts.append("\n".join(["Shape:", *(f"    {line}" for line in _shapes(d, shapes))]))
    parts.append("\n".join(_filled(line) for line in _notes(d, gradients)))
    return "\n\n".join(part if "\n" in part else _filled(part) for part in parts if part) + "\n"


def _filled(text: str) -> str:
    indent = text[: len(text) - len(text.lstrip())]
    return textwrap.fill(text, _WIDTH, subsequent_indent=f"{indent}    " if indent else "")


def _shapes(d: Definition, shapes: Shapes) -> list[str]:
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


def _notes(d: Definition, gradients: Mapping[str, str]) -> list[str]:
    notes = [_KINDS[d.kind]]
    if gradients:
        notes = [f"Gradient of {name}: {text}" for name, text in gradients.items()] + ["", *notes]
    if d.forms is not None:
        notes = [*stable_notes(d.forms), "They compute in float64 inside where that says .double()."]
    if d.fixed:
        notes.append(f"Written for {', '.join(f'{name}={value!r}' for name, value in d.fixed.items())}.")
    return notes
