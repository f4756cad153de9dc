"""The lines that compute the gradients of several inputs, each only where it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from pullback.write.expressions import Text
from pullback.write.statements import Statements, is_size, needed, uses_of


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one gradient goes.

    Attributes:
        node: that computes it.
        variable: that holds it.
        position: of its input among all arguments.
    """

    node: fx.Node
    variable: str
    position: int


def each_gradient(
    s: Statements, slots: Mapping[str, Slot], reduced: Callable[[Text, str], str], ctx: str = "ctx"
) -> tuple[list[str], dict[str, str]]:
    """Return the lines that compute each wanted gradient, after their common subexpressions.

    Args:
        s: the statements, with the names known so far.
        slots: of the gradients, by the names of their inputs.
        reduced: maps a gradient as text, and the name of its input, to its text in the shape of the input.
        ctx: name of the context.

    Returns:
        The lines, and the gradients that are one expression, by the names of their inputs.
    """
    nodes, known = [slot.node for slot in slots.values()], list(s.known)
    uses, shared = uses_of(nodes, known), _shared(nodes, known)
    s.compute(shared, uses, shared)
    lines, short = s.take(), {}
    plain = not lines
    lines.append(f"{' = '.join(slot.variable for slot in slots.values())} = None")
    for name, slot in slots.items():
        s.compute([slot.node], uses)
        before, gradient = s.take(), s.show(slot.node)
        if plain and not before:
            short[name] = gradient.text
        lines.append(f"if {ctx}.needs_input_grad[{slot.position}]:")
        lines += [f"    {line}" for line in (*before, f"{slot.variable} = {reduced(gradient, name)}")]
    return lines, short


def _shared(results: Sequence[fx.Node], known: Sequence[fx.Node]) -> list[fx.Node]:
    """Return the nodes that more than one result needs, those that are read beyond the shared part."""
    counts: dict[fx.Node, int] = {}
    for result in dict.fromkeys(results):
        for node in needed([result], known):
            counts[node] = counts.get(node, 0) + 1
    common = {node for node, n in counts.items() if n > 1 and not is_size(node)}
    return [
        node
        for node in needed(results, known)
        if node in common and (node in results or any(user in counts and user not in common for user in node.users))
    ]
