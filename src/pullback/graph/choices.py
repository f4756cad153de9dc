"""Derivatives that branch on a comparison, with the comparison as a node: its mask can be saved, not its operands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import fx

from pullback import _torch
from pullback.graph.bits import is_without_gaps
from pullback.graph.extents import has_extents, kind_of, with_extents

aten = torch.ops.aten


def by_comparisons(graph: fx.Graph, inputs: Collection[fx.Node]) -> None:
    """Write derivatives of clipped functions in a joint graph as a comparison and a choice.

    Not where they compare an input or an output, which are kept or likely kept anyway.
    """
    outputs: Any = graph.output_node().args[0]
    kept = {*inputs, *outputs[0]}
    for node in list(graph.nodes):
        write = _WRITERS.get(node.target)
        if write is None or node.args[1] in kept:
            continue
        value = _torch.traced_value(node.args[1])
        if is_without_gaps(value) and all(_is_exact(number, value.dtype) for number in node.args[2:]):
            with graph.inserting_before(node):
                made = write(graph, node)
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made)
            graph.erase_node(node)


def _is_exact(number: Any, dtype: torch.dtype) -> bool:
    """Whether a comparison with a number is unaffected by rounding that number."""
    return dtype.itemsize > 2 or torch.tensor(number, dtype=dtype).item() == number


def _compared(graph: fx.Graph, target: Any, *args: Any) -> fx.Node:
    made = graph.call_function(target, args)
    like = _torch.traced_value(args[0])
    value = like.new_empty_strided(like.shape, like.stride(), dtype=torch.bool)
    made.meta["val"] = with_extents(value, *kind_of(like)[:2]) if has_extents(like) else value
    return made


def _threshold(graph: fx.Graph, node: fx.Node) -> fx.Node:
    g, x, threshold = node.args
    return graph.call_function(aten.masked_fill.Scalar, (g, _compared(graph, aten.le.Scalar, x, threshold), 0))


def _hardtanh(graph: fx.Graph, node: fx.Node) -> fx.Node:
    g, x, lower, upper = node.args
    above, below = _compared(graph, aten.gt.Scalar, x, lower), _compared(graph, aten.lt.Scalar, x, upper)
    outside = _compared(graph, aten.logical_not.default, _compared(graph, aten.logical_and.default, above, below))
    return graph.call_function(aten.masked_fill.Scalar, (g, outside, 0))


def _leaky(graph: fx.Graph, node: fx.Node) -> fx.Node:
    g, x, slope, _ = node.args
    less = graph.call_function(aten.mul.Scalar, (g, slope))
    less.meta = dict(node.meta)
    return graph.call_function(aten.where.self, (_compared(graph, aten.gt.Scalar, x, 0), g, less))


_WRITERS: Mapping[Any, Callable[[fx.Graph, fx.Node], fx.Node]] = {
    aten.threshold_backward.default: _threshold,
    aten.hardtanh_backward.default: _hardtanh,
    aten.leaky_relu_backward.default: _leaky,
}
