"""Ops decomposed into several, so that common subexpressions are computed once, and loops can be split inside of them.

log σ(x) = min(x, 0) − log(1 + e), softplus(x) = max(x, 0) + log(1 + e) and σ(±x) share e = exp(−|x|); the tanh of a
softplus is a quotient of polynomials in e. Decompositions over rows are in `spelled_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from pullback.kernels import spelled_rows
from pullback.kernels.ops import softplus_slope, softplus_sum, tanh_softplus
from pullback.kernels.regions import CPU, value_of
from pullback.kernels.spelling import Spelling

aten = torch.ops.aten


def spelled(module: fx.GraphModule, devices: Sequence[str] = CPU, whole: Collection[str] = ()) -> fx.GraphModule:
    """Return a graph with such ops decomposed, if kernels for the given device types compute the parts.

    Args:
        module: the graph.
        devices: device types.
        whole: names of nodes that stay as they are.
    """
    if not any(node.target in _SPELLINGS for node in module.graph.nodes):
        return module
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, made))
    for node in list(graph.nodes):
        write = _SPELLINGS.get(node.target)
        if write is not None and node.name not in whole:
            write(Spelling(graph, node, devices))
    graph.eliminate_dead_code()
    return fx.GraphModule(module, graph)


def _log_sigmoid(to: Spelling) -> None:
    (x,) = to.args
    if (e := to.decayed(x)) is None:
        return
    for user in list(to.node.users):
        if user.args[1] == 1:  # the result that PyTorch's backward reads; on a GPU it reads nothing
            is_empty = not value_of(user).numel()
            to.replace(to.call(aten.new_empty.default, x, [0]) if is_empty else e, user)
        else:
            least = to.call(aten.clamp_max.default, x, 0)
            to.replace(to.call(aten.sub.Tensor, least, to.call(aten.log1p.default, e)), user)


def _log_sigmoid_backward(to: Spelling) -> None:
    g, x, _ = to.args
    if (less := to.computed(aten.neg.default, x)) is None:
        return
    to.replace(to.call(aten.mul.Tensor, g, to.call(aten.sigmoid.default, less)))


def _scaled(to: Spelling, x: fx.Node, beta: float) -> fx.Node:
    return x if beta == 1 else to.call(aten.mul.Tensor, x, beta)


def _softplus(to: Spelling) -> None:
    given: list[Any] = [*to.args, *(1.0, 20.0)[len(to.args) - 1 :]]
    x, beta, threshold = given
    scaled = _scaled(to, x, beta)
    if (e := to.decayed(scaled)) is None:
        return
    for user in list(to.node.users):
        if user.target == aten.tanh.default and beta == 1 and threshold >= _FLAT:
            to.replace(to.call(tanh_softplus, x, e), user)
    to.replace(to.call(softplus_sum, x, scaled, to.call(aten.log1p.default, e), beta, threshold))


def _mish(to: Spelling) -> None:
    (x,) = to.args
    if e := to.decayed(x):
        to.replace(to.call(aten.mul.Tensor, x, to.call(tanh_softplus, x, e)))


def _mish_backward(to: Spelling) -> None:
    """Write g (t + x σ(x) (1 − t²)), t = tanh(softplus(x))."""
    g, x = to.args
    if (e := to.decayed(x)) is None:
        return
    t = to.call(tanh_softplus, x, e)
    share = to.call(aten.mul.Tensor, x, to.call(aten.sigmoid.default, x))
    slope = to.call(aten.add.Tensor, t, to.call(aten.tanh_backward.default, share, t))
    to.replace(to.call(aten.mul.Tensor, g, slope))


def _softplus_backward(to: Spelling) -> None:
    g, x, beta, threshold = to.args
    scaled = _scaled(to, x, beta)
    if (share := to.computed(aten.sigmoid.default, scaled)) is None:
        return
    to.replace(to.call(softplus_slope, g, share, scaled, threshold))


_FLAT = 20
"""From where on the tanh of a number is 1 in every dtype."""
_SPELLINGS: Mapping[Any, Callable[[Spelling], None]] = {
    **spelled_rows.SPELLINGS,
    aten.log_sigmoid_forward.default: _log_sigmoid,
    aten.log_sigmoid_backward.default: _log_sigmoid_backward,
    aten.mish.default: _mish,
    aten.mish_backward.default: _mish_backward,
    aten.softplus.default: _softplus,
    aten.softplus_backward.default: _softplus_backward,
}
