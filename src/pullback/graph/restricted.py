"""Backward for cotangents of some outputs only, as autograd runs it if the loss does not use the others.

A zero cotangent in place of an absent one is not equivalent: with an infinite slope, 0 · ∞ is NaN.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.dtypes import is_continuous
from pullback.graph.partition import Joint
from pullback.graph.symbolic import kind_of
from pullback.graph.trace import mutates

_aten = torch.ops.aten


def restricted(joint: Joint, used: Collection[int]) -> Joint | None:
    """Restrict a backward to cotangents of some of the connected outputs; residuals and forward stay.

    A backward is linear in the cotangents, so terms in absent ones alone are dropped; a gradient with no other term is
    `None`. The result is `None` if the graph does not show which terms these are.
    """
    if mutates(joint.backward.graph):
        return None
    try:
        module = fx.GraphModule(joint.backward, _Restriction(joint, used).graph)
    except _UnclearError:
        return None
    results = module.graph.output_node().args[0]
    assert isinstance(results, list | tuple)
    unused, connected = tuple(g is None for g in results), tuple(i for i in joint.connected if i in used)
    return replace(joint, backward=module, unused=unused, connected=connected)


class _UnclearError(Exception):
    """The graph does not show which terms are linear in absent cotangents."""


class _Restriction:
    """Copy of a backward without the terms in absent cotangents alone.

    Attributes:
        graph: the copy.
    """

    def __init__(self, joint: Joint, used: Collection[int]) -> None:
        self.graph = fx.Graph()
        self._made: dict[fx.Node, fx.Node] = {}
        self._absent: set[fx.Node] = set()
        self._present: set[fx.Node] = set()
        """Nodes that depend on present cotangents."""
        nodes = list(joint.backward.graph.nodes)
        placeholders = joint.backward.graph.find_nodes(op="placeholder")
        for node, i in zip(placeholders[len(joint.saved) :], joint.connected, strict=True):
            (self._present if i in used else self._absent).add(node)
        for node in nodes:
            if node not in self._absent:
                self._add(node)
        self.graph.eliminate_dead_code()
        self.graph.lint()

    def _add(self, node: fx.Node) -> None:
        # The backward is B₁ g₁ + B₂ g₂. A node that reads absent cotangents alone is a term of B₂ g₂ and goes; one that
        # reads both must be jointly linear, to become its part in g₁ with zeros for the rest; one that reads neither
        # stays.
        absent = self._absent.intersection(node.all_input_nodes)
        present = not self._present.isdisjoint(node.all_input_nodes)
        if node.op == "output":
            results = node.args[0]
            assert isinstance(results, list | tuple)
            self.graph.output([self._made.get(g) if isinstance(g, fx.Node) else g for g in results])
        elif absent and node.target not in _FILLED and not present:
            _require_linear(node)
            self._absent.add(node)
        elif absent and (same := self._other_term(node, absent)) is not None:
            self._made[node] = self._made[same]
            self._present.add(node)
        elif absent and present and node.target not in _SUMS:
            raise _UnclearError
        else:
            self._made[node] = self.graph.node_copy(node, self._or_zeros)
            if present and node.target not in _FILLED:
                self._present.add(node)

    def _other_term(self, node: fx.Node, absent: Collection[fx.Node]) -> fx.Node | None:
        """Present term of a sum with one absent term, if it has the sum's shape, strides and dtype."""
        if node.target is not _aten.add.Tensor or node.kwargs:
            return None
        (term,) = [a for a in node.args if a not in absent] or [None]
        if not isinstance(term, fx.Node) or kind_of(_torch.traced_value(term)) != kind_of(_torch.traced_value(node)):
            return None
        return term

    def _or_zeros(self, node: fx.Node) -> fx.Node:
        """Copy of an operand; zeros for an absent one."""
        if node not in self._absent:
            return self._made[node]
        value = _torch.traced_value(node)
        if not isinstance(value, Tensor) or not value.is_contiguous():
            raise _UnclearError
        options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
        zeros = self.graph.call_function(_aten.zeros.default, (list(kind_of(value)[0]),), options)
        zeros.meta = dict(node.meta)
        return zeros


def _require_linear(node: fx.Node) -> None:
    """Refuse a mask or an index that is computed from a cotangent: zeros need not give zeros then."""
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(v, Tensor) and is_continuous(v.dtype) for v in values if v is not None):
        raise _UnclearError


_FILLED = frozenset(
    overload
    for name in ("ones_like", "full_like", "empty_like", "new_ones", "new_full", "new_empty", "new_empty_strided")
    for overload in [getattr(_aten, name).default]
)
"""Ops that use a tensor's metadata rather than its values, and whose results are not zeros."""

_SUMS = frozenset(
    [
        _aten.add.Tensor,
        _aten.sub.Tensor,
        _aten.cat.default,
        _aten.stack.default,
        _aten.where.self,
        _aten.complex.default,
        _aten.copy.default,
        _aten.index_put.default,
        _aten.index_add.default,
        _aten.scatter_add.default,
        _aten.slice_scatter.default,
        _aten.select_scatter.default,
        _aten.diagonal_scatter.default,
    ]
)
"""Ops that are jointly linear in their operands."""
