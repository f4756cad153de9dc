"""Ops as several, so that what they have in common with others is computed once, and loops can be cut inside of them.

log σ(x) = min(x, 0) − log(1 + e), softplus(x) = max(x, 0) + log(1 + e) and σ(±x) have e = exp(−|x|) in common; the
tanh of a softplus is a quotient of e.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from pullback.kernels.ops import softplus_slope, softplus_sum, tanh_softplus
from pullback.kernels.regions import is_ours, value_of

aten = torch.ops.aten


def spelled(module: fx.GraphModule) -> fx.GraphModule:
    """Return a graph with such ops as several, where kernels compute these."""
    if not any(node.target in _SPELLINGS for node in module.graph.nodes):
        return module
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, made))
    for node in list(graph.nodes):
        write = _SPELLINGS.get(node.target)
        if write is not None:
            write(_Spelling(graph, node))
    graph.eliminate_dead_code()
    return fx.GraphModule(module, graph)


class _Spelling:
    """Writes ops in front of a node that they stand for, on values like that of the op's operand."""

    def __init__(self, graph: fx.Graph, node: fx.Node) -> None:
        self.graph, self.node = graph, node
        self.args: list[Any] = list(node.args)

    def call(self, target: Callable[..., Any], *args: Any) -> fx.Node:
        """Add an op on the operand that it takes first."""
        with self.graph.inserting_before(self.node):
            made = self.graph.call_function(target, args)
        made.meta["val"] = value_of(args[0])
        return made

    def decayed(self, x: fx.Node) -> fx.Node | None:
        """Return exp(−|x|), if kernels compute it."""
        size = self.call(aten.abs.default, x)
        if not is_ours(size):
            self.graph.erase_node(size)
            return None
        return self.call(aten.exp.default, self.call(aten.neg.default, size))

    def replace(self, made: fx.Node, node: fx.Node | None = None) -> None:
        """Have an op stand for the node, or for another one."""
        old = node or self.node
        made.meta = dict(old.meta)
        old.replace_all_uses_with(made)


def _log_sigmoid(to: _Spelling) -> None:
    (x,) = to.args
    if (e := to.decayed(x)) is None:
        return
    for user in list(to.node.users):
        if user.args[1] == 1:  # what PyTorch's backward reads
            to.replace(e, user)
        else:
            least = to.call(aten.clamp_max.default, x, 0)
            to.replace(to.call(aten.sub.Tensor, least, to.call(aten.log1p.default, e)), user)


def _log_sigmoid_backward(to: _Spelling) -> None:
    g, x, _ = to.args
    share = to.call(aten.sigmoid.default, to.call(aten.neg.default, x))
    to.replace(to.call(aten.mul.Tensor, g, share))


def _scaled(to: _Spelling, x: fx.Node, beta: float) -> fx.Node:
    return x if beta == 1 else to.call(aten.mul.Tensor, x, beta)


def _softplus(to: _Spelling) -> None:
    given: list[Any] = [*to.args, *(1.0, 20.0)[len(to.args) - 1 :]]
    x, beta, threshold = given
    scaled = _scaled(to, x, beta)
    if (e := to.decayed(scaled)) is None:
        return
    for user in list(to.node.users):
        if user.target == aten.tanh.default and beta == 1 and threshold >= _FLAT:
            to.replace(to.call(tanh_softplus, x, e), user)
    to.replace(to.call(softplus_sum, x, scaled, to.call(aten.log1p.default, e), beta, threshold))


def _mish(to: _Spelling) -> None:
    (x,) = to.args
    if e := to.decayed(x):
        to.replace(to.call(aten.mul.Tensor, x, to.call(tanh_softplus, x, e)))


def _mish_backward(to: _Spelling) -> None:
    """Write g (t + x σ(x) (1 − t²)), t = tanh(softplus(x))."""
    g, x = to.args
    if (e := to.decayed(x)) is None:
        return
    t = to.call(tanh_softplus, x, e)
    share = to.call(aten.mul.Tensor, x, to.call(aten.sigmoid.default, x))
    slope = to.call(aten.add.Tensor, t, to.call(aten.tanh_backward.default, share, t))
    to.replace(to.call(aten.mul.Tensor, g, slope))


def _softplus_backward(to: _Spelling) -> None:
    g, x, beta, threshold = to.args
    scaled = _scaled(to, x, beta)
    to.replace(to.call(softplus_slope, g, to.call(aten.sigmoid.default, scaled), scaled, threshold))


_FLAT = 20
"""From where on the tanh of a number is 1 in every dtype."""
_SPELLINGS: dict[Any, Callable[[_Spelling], None]] = {
    aten.log_sigmoid_forward.default: _log_sigmoid,
    aten.log_sigmoid_backward.default: _log_sigmoid_backward,
    aten.mish.default: _mish,
    aten.mish_backward.default: _mish_backward,
    aten.softplus.default: _softplus,
    aten.softplus_backward.default: _softplus_backward,
}
