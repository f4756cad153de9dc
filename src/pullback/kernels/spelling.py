"""Writes several ops of a graph where one stood."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.graph.blank import blank_of
from pullback.kernels.regions import is_ours, value_of
from pullback.kernels.rows import is_reduction

aten = torch.ops.aten

_OF = "reduced for"
"""Key of `fx.Node.meta`: the name of the node that a reduction was written for."""


class Spelling:
    """Writes the decomposition of an op before its node, on values like the op's operand."""

    def __init__(self, graph: fx.Graph, node: fx.Node, devices: Sequence[str]) -> None:
        self.graph, self.node, self._devices = graph, node, devices
        self.args: list[Any] = list(node.args)

    def call(self, target: Callable[..., Any], *args: Any) -> fx.Node:
        """Add an op on the operand that it takes first."""
        return self._added(target, args, value_of(args[0]))

    def of_rows(self, x: fx.Node, target: Callable[..., Any], *args: Any) -> fx.Node:
        """Add an op that gives one number for each row of x."""
        value = value_of(x)
        like = torch.empty((*value.shape[:-1], 1), dtype=value.dtype, device=_torch.META)
        return self._added(target, args, blank_of(like))

    def reduced(self, target: Callable[..., Any], x: fx.Node) -> fx.Node | None:
        """Add a reduction over the last dimension, if kernels compute it."""
        made = self.of_rows(x, target, x, [-1], True)
        if not is_reduction(made):
            self.graph.erase_node(made)
            return None
        made.meta[_OF] = self.node.name
        return made

    def _added(self, target: Callable[..., Any], args: tuple[Any, ...], value: Tensor) -> fx.Node:
        with self.graph.inserting_before(self.node):
            made = self.graph.call_function(target, args)
        made.meta["val"] = value
        return made

    def computed(self, target: Callable[..., Any], *args: Any) -> fx.Node | None:
        """Add an op on the operand that it takes first, if kernels compute it: PyTorch would round its result."""
        made = self.call(target, *args)
        if is_ours(made, self._devices):
            return made
        self.graph.erase_node(made)
        return None

    def decayed(self, x: fx.Node) -> fx.Node | None:
        """Return exp(−|x|), if kernels compute it."""
        if (size := self.computed(aten.abs.default, x)) is None:
            return None
        return self.call(aten.exp.default, self.call(aten.neg.default, size))

    def replace(self, made: fx.Node, node: fx.Node | None = None) -> None:
        """Replace the node, or another one, by an op."""
        old = node or self.node
        made.meta = dict(old.meta)
        old.replace_all_uses_with(made)


def torn(graph: fx.Graph, home: Mapping[fx.Node, Any]) -> set[str]:
    """Return the names of the decomposed nodes with a sum rounded to 16 bits that PyTorch keeps in 32.

    A sum is rounded unless one region computes it and all its readers; `home` maps each node to its region.
    """
    sums = (n for n in graph.nodes if _OF in n.meta and n.target is aten.sum.dim_IntList)
    narrow = (n for n in sums if value_of(n).dtype.itemsize == 2)
    return {n.meta[_OF] for n in narrow if n not in home or any(home.get(user) is not home[n] for user in n.users)}
