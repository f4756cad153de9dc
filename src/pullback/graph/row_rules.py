"""Rules for `pullback.graph.rows`: the ATen ops that keep rows independent, and those that sum over them.

A rule takes a node with some inputs that have rows, returns the node's mark, and adds the node to the graph of a chunk.
Sizes in its arguments that derive from the number of rows become the chunk's.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import fx

from pullback import _torch
from pullback.graph.lines import op_name
from pullback.graph.row_node import At, dims_of, shape_of
from pullback.graph.row_places import PLACES, reduced, rules
from pullback.graph.rows import Mark, MixingError, Proof, Rows, wide

_aten = torch.ops.aten


def mark_of(proof: Proof, node: fx.Node) -> Mark:
    """Return the mark of a node with some inputs that have rows.

    Raises:
        MixingError: if the node mixes rows, or has no rule.
    """
    at = At(proof, node)
    if node.target is operator.getitem:
        mark = proof.marks[at.first]
        assert isinstance(mark, Rows)
        return proof.keep(node, node.args, {}, mark)
    rule = RULES.get(op_name(node))
    if torch.Tag.pointwise in getattr(node.target, "tags", ()) and _torch.op_name(node.target).startswith("aten::"):
        rule = _pointwise
    if rule is None or not _torch.op_name(node.target).startswith("aten::"):
        raise MixingError(node, "is not known to keep rows apart")
    return rule(at)


# Ops that go through the elements.


def _aligned(at: At, shape: Sequence[int]) -> Rows:
    """Return where a result that is broadcast from the tensors among a node's arguments has rows, the same in all."""
    given = at.node.all_input_nodes
    found = {(len(shape) - len(shape_of(a)) + r.dim, r.block) for a in given if (r := at.rows(a)) is not None}
    if len(found) > 1:
        raise at.mixed("pairs rows with other rows")
    ((dim, block),) = found
    for a in given:
        if at.rows(a) is None:
            own = dim - (len(shape) - len(shape_of(a)))
            if own >= 0 and shape_of(a)[own] != 1:
                _narrow(at, a, own, block)
    return Rows(dim, block)


def _narrow(at: At, a: fx.Node, dim: int, block: int) -> None:
    """Slice for a chunk a value that the formula expanded to all rows: they are equal, so the first ones do."""
    if _torch.traced_value(a).stride(dim) != 0 or _is_given_expanded(a, shape_of(a)[dim]):
        raise at.mixed(f"pairs rows with the places of `{op_name(a)}`, which has none")
    size = at.proof.call(operator.mul, at.proof.count, block)
    part = at.proof.call(_aten.slice.Tensor, a, dim, 0, size)
    at.args = list(fx.node.map_arg(at.args, lambda b: part if b is a else b))


def _is_given_expanded(node: fx.Node, size: int) -> bool:
    """Whether a view may be of an input that its caller expanded to as many rows: of these each has a gradient."""
    while node.all_input_nodes:
        node = node.all_input_nodes[0]
    x = _torch.traced_value(node)
    return node.op == "placeholder" and any(n == size and not s for n, s in zip(x.shape, x.stride(), strict=True))


def _pointwise(at: At) -> Mark:
    rows = _aligned(at, at.shape())
    return at.keep(rows.dim, rows.block)


def _loss(at: At) -> Mark:
    """An elementwise loss, with its reduction."""
    shape = torch.broadcast_shapes(*(shape_of(a) for a in at.node.all_input_nodes))
    rows = _aligned(at, shape)
    reduction = at.get("reduction")
    if reduction == 0:
        return at.keep(rows.dim, rows.block)
    at.put("reduction", 0)
    losses = at.proof.call(at.node.target, *at.args, **at.kwargs)
    return _summed(at, losses, None, 1 if reduction == 2 else torch.Size(shape).numel())


# Sums.


def _sum(at: At) -> Mark:
    rows = at.of_first()
    shape = shape_of(at.first)
    dims = dims_of(at.get("dim") if "dim" in at.names else None, len(shape))
    if rows.dim not in dims:
        return reduced(at, rows, dims)
    parts = 1
    for d in dims if op_name(at.node) == "mean" else ():
        parts *= shape[d]
    keepdim = "keepdim" in at.names and at.get("keepdim")
    return _summed(at, at.first, (dims, keepdim), parts)


def _summed(at: At, x: fx.Node, dims: tuple[list[int], bool] | None, parts: int) -> Mark:
    """The sum of something that has rows over these and other dimensions, divided by the number of its parts."""
    dtype = _torch.traced_value(at.node).dtype
    over = [] if dims is None else list(dims)
    target = _aten.sum.default if dims is None else _aten.sum.dim_IntList
    total = at.proof.call(target, x, *over, dtype=wide(dtype))

    def finish(graph: fx.Graph, sums: Sequence[fx.Node]) -> fx.Node:
        (whole,) = sums
        mean = graph.call_function(_aten.div.Tensor, (whole, parts)) if parts != 1 else whole
        return _narrowed(graph, mean, dtype)

    return at.proof.sum_up(at.node, [total], finish)


def _narrowed(graph: fx.Graph, x: fx.Node, dtype: torch.dtype) -> fx.Node:
    if wide(dtype) == dtype:
        return x
    return graph.call_function(_aten._to_copy.default, (x,), {"dtype": dtype})


def _nll(at: At) -> Mark:
    """The negative log-likelihood; its mean is over the weights of the targets, which are summed too."""
    scores, target, weight = at.get("self"), at.get("target"), at.get("weight")
    rows, reduction, ignored = at.rows(scores), at.get("reduction"), at.get("ignore_index")
    batched = len(shape_of(scores)) == len(shape_of(target)) + 1
    if rows is None or rows.dim or at.rows(target) != rows or at.rows(weight) is not None or not batched:
        raise at.mixed("is not known to keep rows apart unless its inputs and targets have them first")
    if reduction == 0:
        return at.keep(0, rows.block)
    call, dtype = at.proof.call, _torch.traced_value(scores).dtype
    at.put("reduction", 0)
    losses = call(operator.getitem, call(at.node.target, *at.args, **at.kwargs), 0)
    valid = call(_aten.ne.Scalar, target, ignored)
    counted = valid
    if weight is not None:
        there = call(_aten._to_copy.default, call(_aten.mul.Tensor, target, valid), dtype=torch.int64)
        weights = call(_aten.take.default, call(_aten.detach.default, weight), there)
        counted = call(_aten.mul.Tensor, weights, valid)
    sums = [call(_aten.sum.default, x, dtype=wide(dtype)) for x in (losses, counted)]

    def finish(graph: fx.Graph, sums: Sequence[fx.Node]) -> tuple[fx.Node, fx.Node]:
        total, weights = sums
        loss = graph.call_function(_aten.div.Tensor, (total, weights)) if reduction == 1 else total
        return _narrowed(graph, loss, dtype), _narrowed(graph, weights, dtype)

    return at.proof.sum_up(at.node, sums, finish)


def _product(at: At) -> Mark:
    """A matrix product, perhaps of batches: rows of the left, columns of the right, or both summed over."""
    n = len(at.args)
    left, right = at.args[n - 2 :] if op_name(at.node) != "addmm" else at.args[1:]
    a, b = at.rows(left), at.rows(right)
    last = len(shape_of(left)) - 1
    if op_name(at.node) == "addmm":
        bias = at.args[0]
        places = (0, *shape_of(bias))[-2:] if len(shape_of(bias)) > 1 else (1, 1)
        if at.rows(bias) is not None or (a is not None and places[0] != 1) or b is not None:
            raise at.mixed("is not known to keep the rows of what it adds apart")
    if a is not None and b is not None:
        if a.block == b.block and a.dim == last and b.dim == max(len(shape_of(right)) - 2, 0):
            dtype = _torch.traced_value(at.node).dtype
            total = at.proof.call(at.node.target, *at.args)
            return at.proof.sum_up(at.node, [total], lambda graph, sums: _narrowed(graph, sums[0], dtype))
        if a.dim == b.dim == 0 and last == 2 and a.block == b.block:
            return at.keep(0, a.block)
        raise at.mixed("multiplies rows by other rows")
    one = a or b
    assert one is not None
    dim = one.dim
    batched = last == 2 and dim == 0  # then the other has batches for rows, and is none
    if batched or dim == (last if a is not None else max(len(shape_of(right)) - 2, 0)):
        raise at.mixed("sums over rows with weights that are not theirs")
    return at.keep(dim, one.block)


RULES = {
    **PLACES,
    **rules(_pointwise, "_to_copy detach alias lift_fresh_copy lift_fresh zeros_like ones_like full_like masked_fill"),
    **rules(_pointwise, "log_sigmoid_forward _prelu_kernel _conj"),
    **rules(_loss, "mse_loss binary_cross_entropy binary_cross_entropy_with_logits smooth_l1_loss huber_loss"),
    **rules(_loss, "soft_margin_loss"),
    **rules(_sum, "sum mean"),
    **rules(_nll, "nll_loss_forward nll_loss2d_forward"),
    **rules(_product, "mm bmm mv dot addmm"),
}
"""Rules by op name; ops that ATen tags as pointwise need none."""
