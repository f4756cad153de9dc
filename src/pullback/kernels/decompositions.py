"""Decompositions of ops in a graph, so that common subexpressions are computed once and loops can be split inside them.

log σ(x) = min(x, 0) − log(1 + e), softplus(x) = max(x, 0) + log(1 + e) and σ(±x) share e = exp(−|x|); the tanh of a
softplus is a quotient of polynomials in e.

Over rows, log softmax(x) = x − m − log Σ exp(x − m), m = max x. Its vjp is g − exp(y) Σ g for the result y, since
∂yᵢ/∂xⱼ = δᵢⱼ − exp(yⱼ). The g that
a loss on classes k sends back is −s at k and 0 elsewhere, for one number s in each row: so the vjp of both is s exp(y),
less s at k, and g need not be materialised.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback.graph.symbolic import has_extents
from pullback.kernels.regions import CPU, is_ours, value_of
from pullback.kernels.rows import is_reduction
from pullback.ops.activations import tanh_softplus
from pullback.ops.exponential import softplus_slope, softplus_sum

aten = torch.ops.aten

_MEAN = 1
"""The reduction of a loss to its mean, as ATen has it."""
_FLAT = 20
"""From where on the tanh of a number is 1 in every dtype: 1 − tanh 20 = 8.5·10⁻¹⁸ is below 2⁻⁵⁴."""
_OF = "reduced for"
"""Key of `fx.Node.meta`: the name of the node that a reduction was written for."""


def decompose(module: fx.GraphModule, devices: Sequence[str] = CPU, whole: Collection[str] = ()) -> fx.GraphModule:
    """Return a graph with such ops decomposed, if kernels for the given device types compute the parts.

    Args:
        module: the graph.
        devices: device types.
        whole: names of nodes that stay as they are.
    """
    if not any(node.target in _DECOMPOSITIONS for node in module.graph.nodes):
        return module
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, made))
    for node in list(graph.nodes):
        write = _DECOMPOSITIONS.get(node.target)
        if write is not None and node.name not in whole:
            write(Rewriter(graph, node, devices))
    graph.eliminate_dead_code()
    return fx.GraphModule(module, graph)


def with_rounded_sums(graph: fx.Graph, home: Mapping[fx.Node, Any]) -> set[str]:
    """Return the names of the decomposed nodes with a sum that is rounded to 16 bits, while PyTorch keeps 32.

    A sum is rounded unless one region computes it and all its readers; `home` maps each node to its region.
    """
    sums = (n for n in graph.nodes if _OF in n.meta and n.target is aten.sum.dim_IntList)
    narrow = (n for n in sums if value_of(n).dtype.itemsize == 2)
    return {n.meta[_OF] for n in narrow if n not in home or any(home.get(user) is not home[n] for user in n.users)}


class Rewriter:
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
        return self._added(target, args, value.new_empty((*value.shape[:-1], 1)))

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


def _log_sigmoid(to: Rewriter) -> None:
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


def _log_sigmoid_backward(to: Rewriter) -> None:
    g, x, _ = to.args
    if (less := to.computed(aten.neg.default, x)) is None:
        return
    to.replace(to.call(aten.mul.Tensor, g, to.call(aten.sigmoid.default, less)))


def _scaled(to: Rewriter, x: fx.Node, beta: float) -> fx.Node:
    return x if beta == 1 else to.call(aten.mul.Tensor, x, beta)


def _softplus(to: Rewriter) -> None:
    given: list[Any] = [*to.args, *(1.0, 20.0)[len(to.args) - 1 :]]
    x, beta, threshold = given
    scaled = _scaled(to, x, beta)
    if (e := to.decayed(scaled)) is None:
        return
    for user in list(to.node.users):
        if user.target == aten.tanh.default and beta == 1 and threshold >= _FLAT:
            to.replace(to.call(tanh_softplus, x, e), user)
    to.replace(to.call(softplus_sum, x, scaled, to.call(aten.log1p.default, e), beta, threshold))


def _mish(to: Rewriter) -> None:
    (x,) = to.args
    if e := to.decayed(x):
        to.replace(to.call(aten.mul.Tensor, x, to.call(tanh_softplus, x, e)))


def _mish_backward(to: Rewriter) -> None:
    """Write g (t + x σ(x) (1 − t²)), t = tanh(softplus(x))."""
    g, x = to.args
    if (e := to.decayed(x)) is None:
        return
    t = to.call(tanh_softplus, x, e)
    share = to.call(aten.mul.Tensor, x, to.call(aten.sigmoid.default, x))
    slope = to.call(aten.add.Tensor, t, to.call(aten.tanh_backward.default, share, t))
    to.replace(to.call(aten.mul.Tensor, g, slope))


def _softplus_backward(to: Rewriter) -> None:
    g, x, beta, threshold = to.args
    scaled = _scaled(to, x, beta)
    if (share := to.computed(aten.sigmoid.default, scaled)) is None:
        return
    to.replace(to.call(softplus_slope, g, share, scaled, threshold))


def _log_softmax(to: Rewriter) -> None:
    x, dim, _ = to.args
    top = to.reduced(aten.amax.default, x) if _is_over_rows(to.node, x, dim) else None
    if top is None:
        return
    below = to.call(aten.sub.Tensor, x, top)
    if total := to.reduced(aten.sum.dim_IntList, to.call(aten.exp.default, below)):
        to.replace(to.call(aten.sub.Tensor, below, to.call(aten.log.default, total)))


def _log_softmax_backward(to: Rewriter) -> None:
    g, y, dim, _ = to.args
    total = to.reduced(aten.sum.dim_IntList, g) if _is_over_rows(to.node, y, dim) else None
    if total is None:
        return
    if g.target is aten.nll_loss_backward.default and g.args[1] is y and len(g.users) == 2:
        _loss_backward(to, g, y)
    else:
        to.replace(to.call(aten.sub.Tensor, g, to.call(aten.mul.Tensor, to.call(aten.exp.default, y), total)))


def _loss_backward(to: Rewriter, loss: fx.Node, y: fx.Node) -> None:
    g, _, k, weight, reduction, ignored, total = loss.args
    size = to.of_rows(y, _cotangent_of_rows, g, k, weight, ignored, total if reduction == _MEAN else None)
    whole = to.call(aten.mul.Tensor, to.call(aten.exp.default, y), size)
    to.replace(to.call(_less_at, whole, k, size, ignored))


def _is_over_rows(node: fx.Node, x: fx.Node, dim: int) -> bool:
    """Whether an op goes over the last dimension, of a known size, of values that it neither widens nor narrows."""
    value = value_of(x)
    if has_extents(value):
        return False
    return bool(value.dim() > 1 and dim % value.dim() == value.dim() - 1 and value.dtype == value_of(node).dtype)


def _cotangent_of_rows(g: Tensor, k: Tensor, weight: Tensor | None, ignored: int, total: Any) -> Tensor:
    """Return s for each row: 0 where the class is `ignored`."""
    k = k.long()  # uint8 as well, which indexes as a mask does
    counts = k != ignored
    size = g if total is None else g / total
    if weight is not None:
        size = size * weight[torch.where(counts, k, 0)]
    return torch.where(counts, size, size.new_zeros(())).unsqueeze(1)


def _less_at(whole: Tensor, k: Tensor, size: Tensor, ignored: int) -> Tensor:
    """Subtract the size of each row at its class, in place: nothing else reads `whole`."""
    k = k.long()
    return whole.scatter_add_(1, torch.where(k != ignored, k, 0).unsqueeze(1), size.neg())


# Not in the registry: these rewrite a graph, where several ops share one exponential.
_DECOMPOSITIONS: Mapping[Any, Callable[[Rewriter], None]] = {
    aten._log_softmax.default: _log_softmax,
    aten._log_softmax_backward_data.default: _log_softmax_backward,
    aten.log_sigmoid_forward.default: _log_sigmoid,
    aten.log_sigmoid_backward.default: _log_sigmoid_backward,
    aten.mish.default: _mish,
    aten.mish_backward.default: _mish_backward,
    aten.softplus.default: _softplus,
    aten.softplus_backward.default: _softplus_backward,
}
