"""Branches of selections: values that only one branch needs are computed only if some lane of a vector selects it.

Stable forms select among several forms by thresholds, and the forms for the tails are the expensive ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from pullback.kernels import lowerings
from pullback.ops.lowering import Number

aten = torch.ops.aten


@dataclass(eq=False, slots=True)
class Side:
    """A side of a choice, or all that is always computed, which has no choice."""

    choice: fx.Node | None = None
    parent: Side | None = None
    nodes: list[fx.Node] = field(default_factory=list)

    def path(self) -> list[Side]:
        """Return the sides around this one, from the outermost on."""
        return [*(self.parent.path() if self.parent else []), self]


CHEAP = frozenset(target for target, lowering in lowerings.LOWERINGS.items() if lowering.latency == 1)
"""Ops of few instructions."""
_WORTH = 8
"""How many cheap ops are worth a branch."""


class Sides:
    """Nodes divided among the branches of the selections among them.

    Attributes:
        all: nodes that are always computed.
        of: the others, by the selection and the index of the branch.
    """

    def __init__(self, nodes: Sequence[fx.Node], outputs: Collection[fx.Node]) -> None:
        self.all = Side()
        self.of: dict[tuple[fx.Node, int], Side] = {}
        self._order = {node: i for i, node in enumerate(nodes)}
        home: dict[fx.Node, Side] = {}
        for node in reversed(nodes):
            around = [s for user in node.users for s in self._used_in(node, user, home)]
            home[node] = self.all if node in outputs else _common(around)
            for k in branches_of(node):
                self.of[node, k] = Side(node, home[node])
        for node in nodes:
            home[node].nodes.append(node)
        for key, side in reversed(list(self.of.items())):  # inner ones first
            if sum(1 if n.target in CHEAP else _WORTH for n in side.nodes) < _WORTH:
                self._dissolve(key, side)

    @classmethod
    def undivided(cls, nodes: Sequence[fx.Node]) -> Sides:
        """Return nodes that are all always computed."""
        sides = cls((), ())
        sides.all.nodes = list(nodes)
        return sides

    @property
    def every(self) -> list[Side]:
        """The unconditional part, then the branches."""
        return [self.all, *self.of.values()]

    def _used_in(self, node: fx.Node, user: fx.Node, home: Mapping[fx.Node, Side]) -> list[Side]:
        """Return the innermost branch that contains a use of a node."""
        if user not in home:
            return []
        branches = branches_of(user)
        if node in branches.values() and [*user.args].count(node) == 1:
            return [self.of[user, next(k for k, a in branches.items() if a is node)]]
        return [home[user]]

    def _dissolve(self, key: tuple[fx.Node, int], side: Side) -> None:
        assert side.parent is not None
        side.parent.nodes = sorted([*side.parent.nodes, *side.nodes], key=self._order.__getitem__)
        for other in self.of.values():
            if other.parent is side:
                other.parent = side.parent
        del self.of[key]


def branches_of(node: fx.Node) -> dict[int, fx.Node | Number]:
    """Return the branches of a selection: 0 where its condition holds, 1 where it does not."""
    args: Sequence[Any] = node.args
    if node.target == aten.where.self:
        return {0: args[1], 1: args[2]}
    if node.target == aten.masked_fill.Scalar:
        return {0: Number(args[2]), 1: args[0]}
    return {}


def condition_of(node: fx.Node) -> fx.Node:
    """Return the truth values that a node chooses by."""
    args: Sequence[Any] = node.args
    condition: fx.Node = args[0] if node.target == aten.where.self else args[1]
    return condition


def _common(sides: Sequence[Side]) -> Side:
    """Return the innermost side that holds all of some."""
    first, *others = [side.path() for side in sides]
    for path in others:
        first = [a for a, b in zip(first, path, strict=False) if a is b]
    return first[-1]
