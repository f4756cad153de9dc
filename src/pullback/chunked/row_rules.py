"""Rules of the row proof: the ATen ops that keep rows independent, and those that sum over them.

A rule takes a node with some inputs that have rows, returns the node's mark, and adds the node to the graph of a chunk.
Sizes in its arguments that derive from the number of rows become the chunk's.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.chunked.row_proof import Mark, MixingError, RowOp, RowProof, Rows, RowSplit, dims_of, shape_of, wide
from pullback.graph.trace import op_name

aten = torch.ops.aten


def split_by_rows(module: fx.GraphModule) -> RowSplit | str:
    """Split a graph with one result, or say why it is not known to be a function of sums over rows.

    Rows are the first dimension of the first input that has one. Equal sizes prove nothing about other inputs, so sets
    of inputs with rows are tried, the largest first: the proof rejects a weight that happens to have as many rows.
    """
    furthest, why = -1, "its first tensor has less than two rows"
    order = {node: i for i, node in enumerate(module.graph.nodes)}
    for sources in _hypotheses(module.graph):
        try:
            return RowProof(module, sources).split(mark_of)
        except MixingError as error:
            if order[error.node] > furthest:
                furthest, why = order[error.node], str(error)
    return why


# A proof for each subset: 2¹⁰ at most.
_MOST_SOURCES = 10


def _hypotheses(graph: fx.Graph) -> Iterator[tuple[fx.Node, ...]]:
    """Sets of inputs that may have rows: the first, with subsets of the others of its length, the largest first."""
    first, *others = [node for node in graph.nodes if _may_have_rows(node)]
    rows = _torch.traced_value(first).size(0)
    alike = [node for node in others if _torch.traced_value(node).size(0) == rows][:_MOST_SOURCES]
    for n in range(len(alike), -1, -1):
        yield from ((first, *some) for some in itertools.combinations(alike, n))


def _may_have_rows(node: fx.Node) -> bool:
    if node.op != "placeholder" and (node.op != "call_function" or node.all_input_nodes):
        return False
    value = _torch.traced_value(node)
    return isinstance(value, Tensor) and value.dim() > 0


def mark_of(proof: RowProof, node: fx.Node) -> Mark:
    """Mark of a node with some inputs that have rows.

    Raises:
        MixingError: if the node mixes rows, or has no rule.
    """
    op = RowOp(proof, node)
    if node.target is operator.getitem:
        mark = proof.marks[op.first]
        assert isinstance(mark, Rows)
        return proof.keep(node, node.args, {}, mark)
    rule = RULES.get(op_name(node))
    if torch.Tag.pointwise in getattr(node.target, "tags", ()) and _torch.op_name(node.target).startswith("aten::"):
        rule = _pointwise
    if rule is None or not _torch.op_name(node.target).startswith("aten::"):
        raise MixingError(node, "is not known to keep rows apart")
    return rule(op)


# Elementwise ops.


def _aligned(op: RowOp, shape: Sequence[int]) -> Rows:
    """Rows of a result that is broadcast from the tensors among a node's arguments, whose rows must coincide."""
    # Broadcasting aligns dimensions from the last one on. An operand without rows must be the same for each of them: of
    # size 1 there, or expanded.
    given = op.node.all_input_nodes
    found = {(len(shape) - len(shape_of(a)) + r.dim, r.block) for a in given if (r := op.rows(a)) is not None}
    if len(found) > 1:
        raise op.mixed("pairs rows with other rows")
    ((dim, block),) = found
    for a in given:
        if op.rows(a) is None:
            own = dim - (len(shape) - len(shape_of(a)))
            if own >= 0 and shape_of(a)[own] != 1:
                _narrow(op, a, own, block)
    return Rows(dim, block)


def _narrow(op: RowOp, a: fx.Node, dim: int, block: int) -> None:
    """Slice, for a chunk, a value that the formula expanded to all rows: these are equal, so any of them will do."""
    if _torch.traced_value(a).stride(dim) != 0 or _is_given_expanded(a, shape_of(a)[dim]):
        raise op.mixed(f"pairs rows with the places of `{op_name(a)}`, which has none")
    size = op.proof.call(operator.mul, op.proof.count, block)
    part = op.proof.call(aten.slice.Tensor, a, dim, 0, size)
    op.args = list(fx.node.map_arg(op.args, lambda b: part if b is a else b))


def _is_given_expanded(node: fx.Node, size: int) -> bool:
    """Whether a view may be of an input that the caller expanded to as many rows, each of which gets a gradient."""
    while node.all_input_nodes:
        node = node.all_input_nodes[0]
    x = _torch.traced_value(node)
    return node.op == "placeholder" and any(n == size and not s for n, s in zip(x.shape, x.stride(), strict=True))


def _pointwise(op: RowOp) -> Mark:
    rows = _aligned(op, op.shape())
    return op.keep(rows.dim, rows.block)


def _loss(op: RowOp) -> Mark:
    """An elementwise loss, with its reduction."""
    shape = torch.broadcast_shapes(*(shape_of(a) for a in op.node.all_input_nodes))
    rows = _aligned(op, shape)
    reduction = op.get("reduction")
    if reduction == 0:
        return op.keep(rows.dim, rows.block)
    op.put("reduction", 0)
    losses = op.proof.call(op.node.target, *op.args, **op.kwargs)
    return _summed(op, losses, None, 1 if reduction == 2 else torch.Size(shape).numel())


# Sums.


def _sum(op: RowOp) -> Mark:
    rows = op.of_first()
    shape = shape_of(op.first)
    dims = dims_of(op.get("dim") if "dim" in op.names else None, len(shape))
    if rows.dim not in dims:
        return reduced(op, rows, dims)
    parts = 1
    for d in dims if op_name(op.node) == "mean" else ():
        parts *= shape[d]
    keepdim = "keepdim" in op.names and op.get("keepdim")
    return _summed(op, op.first, (dims, keepdim), parts)


def _summed(op: RowOp, x: fx.Node, dims: tuple[list[int], bool] | None, parts: int) -> Mark:
    """Sum of a value with rows over these and other dimensions, divided by a number of parts."""
    dtype = _torch.traced_value(op.node).dtype
    over = [] if dims is None else list(dims)
    target = aten.sum.default if dims is None else aten.sum.dim_IntList
    total = op.proof.call(target, x, *over, dtype=wide(dtype))

    # A mean over rows divides by the whole number of elements, after the chunks are added: chunks may differ in length.
    def finish(graph: fx.Graph, sums: Sequence[fx.Node]) -> fx.Node:
        (whole,) = sums
        mean = graph.call_function(aten.div.Tensor, (whole, parts)) if parts != 1 else whole
        return _narrowed(graph, mean, dtype)

    return op.proof.sum_up(op.node, [total], finish)


def _narrowed(graph: fx.Graph, x: fx.Node, dtype: torch.dtype) -> fx.Node:
    if wide(dtype) == dtype:
        return x
    return graph.call_function(aten._to_copy.default, (x,), {"dtype": dtype})


def _nll(op: RowOp) -> Mark:
    """Negative log-likelihood. Its mean divides by the weights of the targets, which are summed as well."""
    scores, target, weight = op.get("self"), op.get("target"), op.get("weight")
    rows, reduction, ignored = op.rows(scores), op.get("reduction"), op.get("ignore_index")
    batched = len(shape_of(scores)) == len(shape_of(target)) + 1
    if rows is None or rows.dim or op.rows(target) != rows or op.rows(weight) is not None or not batched:
        raise op.mixed("is not known to keep rows apart unless its inputs and targets have them first")
    if reduction == 0:
        return op.keep(0, rows.block)
    call, dtype = op.proof.call, _torch.traced_value(scores).dtype
    op.put("reduction", 0)
    losses = call(operator.getitem, call(op.node.target, *op.args, **op.kwargs), 0)
    valid = call(aten.ne.Scalar, target, ignored)
    counted = valid
    if weight is not None:
        there = call(aten._to_copy.default, call(aten.mul.Tensor, target, valid), dtype=torch.int64)
        weights = call(aten.take.default, call(aten.detach.default, weight), there)
        counted = call(aten.mul.Tensor, weights, valid)
    # The mean is Σ w[tᵣ] ℓᵣ / Σ w[tᵣ], over rows with a valid target: a quotient of two sums. An ignored target,
    # whatever number it is, is replaced by 0 so that it may index the weights, and counts 0.
    sums = [call(aten.sum.default, x, dtype=wide(dtype)) for x in (losses, counted)]

    def finish(graph: fx.Graph, sums: Sequence[fx.Node]) -> tuple[fx.Node, fx.Node]:
        total, weights = sums
        loss = graph.call_function(aten.div.Tensor, (total, weights)) if reduction == 1 else total
        return _narrowed(graph, loss, dtype), _narrowed(graph, weights, dtype)

    return op.proof.sum_up(op.node, sums, finish)


def _product(op: RowOp) -> Mark:
    """Matrix product, also of batches: rows of the left factor, columns of the right one, or a sum over both."""
    # (A B)ᵢⱼ = Σₖ Aᵢₖ Bₖⱼ. Rows along i or j of one factor stay apart if the other has none; so do rows along the batch
    # of both. Rows along k of both give a sum over rows, whose parts are products of chunks: A B = Σ_chunks A_c B_c.
    # Rows along k of one factor alone are weighted by elements of the other, of which a chunk does not know its own.
    n = len(op.args)
    left, right = op.args[n - 2 :] if op_name(op.node) != "addmm" else op.args[1:]
    a, b = op.rows(left), op.rows(right)
    last = len(shape_of(left)) - 1
    if op_name(op.node) == "addmm":
        bias = op.args[0]
        places = (0, *shape_of(bias))[-2:] if len(shape_of(bias)) > 1 else (1, 1)
        if op.rows(bias) is not None or (a is not None and places[0] != 1) or b is not None:
            raise op.mixed("is not known to keep the rows of what it adds apart")
    if a is not None and b is not None:
        if a.block == b.block and a.dim == last and b.dim == max(len(shape_of(right)) - 2, 0):
            dtype = _torch.traced_value(op.node).dtype
            total = op.proof.call(op.node.target, *op.args)
            return op.proof.sum_up(op.node, [total], lambda graph, sums: _narrowed(graph, sums[0], dtype))
        if a.dim == b.dim == 0 and last == 2 and a.block == b.block:
            return op.keep(0, a.block)
        raise op.mixed("multiplies rows by other rows")
    one = a or b
    assert one is not None
    dim = one.dim
    batched = last == 2 and dim == 0  # then the other has batches for rows, and is none
    if batched or dim == (last if a is not None else max(len(shape_of(right)) - 2, 0)):
        raise op.mixed("sums over rows with weights that are not theirs")
    return op.keep(dim, one.block)


# Ops along dimensions.


def _reduced_along(op: RowOp) -> Mark:
    rows = op.of_first()
    dims = dims_of(op.get("dim") if "dim" in op.names else None, len(shape_of(op.first)))
    if rows.dim in dims:
        raise op.mixed("reduces over rows, and is not a sum")
    return reduced(op, rows, dims)


def reduced(op: RowOp, rows: Rows, dims: Sequence[int]) -> Mark:
    """Mark of a reduction over dimensions other than that of the rows."""
    gone = 0 if op.get("keepdim") else sum(d < rows.dim for d in dims)
    return op.keep(rows.dim - gone, rows.block)


def _along(op: RowOp) -> Mark:
    """An op along one or several dimensions, which keeps the others."""
    rows = op.of_first()
    given = op.get("dim" if "dim" in op.names else "dims")
    if rows.dim in dims_of(given, len(shape_of(op.first))):
        raise op.mixed("works across rows")
    return op.keep(rows.dim, rows.block)


def _gather(op: RowOp) -> Mark:
    """`gather` and `scatter`: index and source agree in every other dimension."""
    # out[…, i, …] = x[…, index[…, i, …], …] along `dim`. Rows in another dimension stay apart if all have them there.
    # Rows of the index along `dim` itself pick from an x that all share: any part of the index gives that part of the
    # result.
    parts = [a for a in op.node.all_input_nodes if shape_of(a)]
    dim = dims_of(op.get("dim"), len(shape_of(op.get("index"))))[0]
    index = op.rows(op.get("index"))
    if index is not None and op_name(op.node) == "gather" and op.rows(op.first) is None and index.dim == dim:
        others = zip(shape_of(op.first), op.shape(), strict=True)
        if all(d == dim or n >= m for d, (n, m) in enumerate(others)):
            return op.keep(dim, index.block)
    if index is None or index.dim == dim or any(op.rows(a) != index for a in parts):
        raise op.mixed("takes from other rows")
    return op.keep(index.dim, index.block)


def _taken(op: RowOp) -> Mark:
    """Entries of a table that all rows share, by indices that have rows."""
    table, index = (op.get("weight"), op.get("indices")) if "weight" in op.names else (op.first, op.get("index"))
    rows = op.rows(index)
    if rows is None or op.rows(table) is not None:
        raise op.mixed("takes from other rows")
    if "sparse" in op.names and (op.get("sparse") or op.get("scale_grad_by_freq")):
        raise op.mixed("has a gradient that is sparse, or mixes rows")
    return op.keep(rows.dim, rows.block)


def _index_select(op: RowOp) -> Mark:
    dim = dims_of(op.get("dim"), len(shape_of(op.first)))[0]
    rows, index = op.rows(op.first), op.rows(op.get("index"))
    if index is not None and rows is None:
        return op.keep(dim, index.block)
    if index is None and rows is not None and rows.dim != dim:
        return op.keep(rows.dim, rows.block)
    raise op.mixed("takes from other rows")


def _indexed(op: RowOp) -> Mark:
    """`x[i, j, …]`: entries of a table, or of each row of x (`i` is then `arange`), by indices that have rows."""
    indices: Any = op.args[1]
    rows = op.rows(op.first)
    if any(i is None for i in indices) or any(_torch.traced_value(i).dtype == torch.bool for i in indices):
        raise op.mixed("takes from other rows")
    shape = torch.broadcast_shapes(*(shape_of(i) for i in indices))
    given = [i for i in indices if op.rows(i) is not None]
    if not given or any(op.rows(i) != Rows() or len(shape_of(i)) != len(shape) for i in given):
        raise op.mixed("takes from other rows")
    if any(op.rows(i) is None and len(shape_of(i)) == len(shape) and shape_of(i)[0] != 1 for i in indices):
        raise op.mixed("takes from other rows")
    if rows is not None:
        if rows != Rows() or not _is_every(indices[0], op.proof.rows) or op.rows(indices[0]) is None:
            raise op.mixed("takes from other rows")
        # Row r reads x[r, j] alone. A chunk numbers its rows, and those of x, from 0.
        every = op.proof.call(aten.arange.default, op.proof.count, device=_torch.traced_value(op.first).device)
        op.args[1] = [every, *indices[1:]]
    return op.keep(0, 1)


def _is_every(node: fx.Node, rows: int) -> bool:
    """Whether a node gives the numbers of all rows, in order."""
    if op_name(node) != "arange":
        return False
    args = [a for a in node.args if not isinstance(a, bool)]
    return args in ([rows], [0, rows], [0, rows, 1])


# Views, and other ops that only move elements.


def _view(op: RowOp) -> Mark:
    """The rows stay the outer ones of a dimension, after as many elements as before."""
    rows, shape, new = op.of_first(), shape_of(op.first), op.shape()
    if "size" not in op.names and "shape" not in op.names:
        raise op.mixed("is not known to keep rows apart")
    # In row-major order a row is, for each index of the dimensions before, a run of `inside` elements, and a view keeps
    # that order. So dimension d of the new shape has rows if as many elements, `ahead`, come from the dimensions before
    # it, and a run is a whole number, `block`, of its steps.
    ahead = torch.Size(shape[: rows.dim]).numel()
    inside = torch.Size(shape[rows.dim + 1 :]).numel() * rows.block
    for dim, size in enumerate(new):
        if torch.Size(new[:dim]).numel() == ahead and size % op.proof.rows == 0 and size:
            block = size // op.proof.rows
            if block * torch.Size(new[dim + 1 :]).numel() == inside:
                op.put("size" if "size" in op.names else "shape", op.sizes(dim, block))
                return op.keep(dim, block)
    raise op.mixed("puts rows together with what is around them")


def _expand(op: RowOp) -> Mark:
    rows = op.of_first()
    dim = rows.dim + len(op.shape()) - len(shape_of(op.first))
    op.put("size", op.sizes(dim, rows.block))
    return op.keep(dim, rows.block)


def _permute(op: RowOp) -> Mark:
    rows, n = op.of_first(), len(shape_of(op.first))
    order = list(range(n))
    if op_name(op.node) == "permute":
        order = dims_of(op.get("dims"), n)
    else:
        i, j = (op.get("dim0") % n, op.get("dim1") % n) if op_name(op.node) == "transpose" else (0, n - 1)
        order[i], order[j] = order[j], order[i]
    return op.keep(order.index(rows.dim), rows.block)


def _unsqueeze(op: RowOp) -> Mark:
    rows = op.of_first()
    dim = op.get("dim") % len(op.shape())
    return op.keep(rows.dim + (dim <= rows.dim), rows.block)


def _squeeze(op: RowOp) -> Mark:
    """The dimensions that go are named: a chunk may be one row."""
    rows, shape = op.of_first(), shape_of(op.first)
    dims = dims_of(op.get("dim") if "dim" in op.names else None, len(shape))
    gone = [d for d in dims if shape[d] == 1]
    made = op.proof.call(aten.squeeze.dims, op.first, gone)
    return op.proof.alias(op.node, made, Rows(rows.dim - sum(d < rows.dim for d in gone), rows.block))


def _select(op: RowOp) -> Mark:
    rows = op.of_first()
    dim = dims_of(op.get("dim"), len(shape_of(op.first)))[0]
    if dim == rows.dim:
        raise op.mixed("takes single rows out")
    return op.keep(rows.dim - (dim < rows.dim), rows.block)


def _slice(op: RowOp) -> Mark:
    rows = op.of_first()
    if dims_of(op.get("dim"), len(shape_of(op.first)))[0] != rows.dim:
        return op.keep(rows.dim, rows.block)
    if op.shape() == shape_of(op.first) and op.get("step") == 1:
        return op.proof.alias(op.node, op.first, rows)
    raise op.mixed("takes a part of the rows")


def _joined(op: RowOp) -> Mark:
    parts: Any = op.first
    found = {op.rows(a) for a in parts}
    rows = next((r for r in found if r is not None), Rows())
    stacks = op_name(op.node) == "stack"
    dim = op.get("dim") % len(op.shape())
    if len(found) > 1 or (dim == rows.dim and not stacks):
        raise op.mixed("puts other things between rows")
    return op.keep(rows.dim + (stacks and dim <= rows.dim), rows.block)


def _pad(op: RowOp) -> Mark:
    rows = op.of_first()
    pad, behind = op.get("pad"), len(shape_of(op.first)) - 1 - rows.dim
    if any(pad[2 * behind : 2 * behind + 2]):
        raise op.mixed("adds rows")
    return op.keep(rows.dim, rows.block)


def _layer_norm(op: RowOp) -> Mark:
    rows = op.of_first()
    if rows.dim >= len(shape_of(op.first)) - len(op.get("normalized_shape")):
        raise op.mixed("normalises across rows")
    return op.keep(rows.dim, rows.block)


OpRule = Callable[[RowOp], Mark]


def _by_name(rule: OpRule, names: str) -> dict[str, OpRule]:
    return dict.fromkeys(names.split(), rule)


# Not in the registry: a rule moves a node to the graph of a chunk, and its ops are not pointwise, or not tagged so.
RULES = {
    **_by_name(_pointwise, "_to_copy detach alias lift_fresh_copy"),
    **_by_name(_pointwise, "lift_fresh zeros_like ones_like full_like masked_fill"),
    **_by_name(_pointwise, "log_sigmoid_forward _prelu_kernel _conj"),
    **_by_name(_loss, "mse_loss binary_cross_entropy binary_cross_entropy_with_logits smooth_l1_loss huber_loss"),
    **_by_name(_loss, "soft_margin_loss"),
    **_by_name(_sum, "sum mean"),
    **_by_name(_nll, "nll_loss_forward nll_loss2d_forward"),
    **_by_name(_product, "mm bmm mv dot addmm"),
    **_by_name(_reduced_along, "amax amin max min argmax argmin prod any all var std var_mean logsumexp"),
    **_by_name(_reduced_along, "linalg_vector_norm nansum norm median kthvalue"),
    **_by_name(_along, "_softmax _log_softmax cumsum cumprod logcumsumexp cummax cummin sort topk flip glu"),
    **_by_name(_along, "split split_with_sizes"),
    **_by_name(_gather, "gather scatter scatter_add"),
    **_by_name(_taken, "take embedding"),
    **_by_name(_index_select, "index_select"),
    **_by_name(_indexed, "index"),
    **_by_name(_view, "view _unsafe_view reshape"),
    **_by_name(_expand, "expand"),
    **_by_name(_permute, "permute transpose t"),
    **_by_name(_unsqueeze, "unsqueeze"),
    **_by_name(_squeeze, "squeeze"),
    **_by_name(_select, "select unbind"),
    **_by_name(_slice, "slice"),
    **_by_name(_joined, "cat stack"),
    **_by_name(_pad, "constant_pad_nd"),
    **_by_name(_layer_norm, "native_layer_norm"),
}
"""Rules by op name; ops that ATen tags as pointwise need none."""
