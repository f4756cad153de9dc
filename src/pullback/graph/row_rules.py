"""Which ATen ops keep rows apart, and which sum over them: a table of rules for `pullback.graph.rows`.

A rule takes a node of which some inputs have rows, says what the node is, and adds it to the graph of a chunk. Sizes in
its arguments that come of the number of rows become the chunk's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.graph.lines import op_name
from pullback.graph.rows import Mark, MixingError, Proof, Rows, wide

_aten = torch.ops.aten


def mark_of(proof: Proof, node: fx.Node) -> Mark:
    """Return what a node is, of which some inputs have rows.

    Raises:
        MixingError: if it mixes rows, or is not known not to.
    """
    at = _At(proof, node)
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


class _At:
    """A node with its arguments by name."""

    def __init__(self, proof: Proof, node: fx.Node) -> None:
        self.proof, self.node = proof, node
        self.args, self.kwargs = list(node.args), dict(node.kwargs)
        parameters = _torch.op_parameters(node.target) if _torch.is_dispatched_op(node.target) else []
        self.names = [p.name for p in parameters]
        self._defaults = {p.name: p.default for p in parameters}

    @property
    def first(self) -> fx.Node:
        """The first argument."""
        found: Any = self.node.args[0]
        return found  # type: ignore[no-any-return]

    def get(self, name: str) -> Any:
        """Return an argument by name."""
        i = self.names.index(name)
        if i < len(self.args):
            return self.args[i]
        return self.kwargs.get(name, self._defaults[name])

    def put(self, name: str, value: Any) -> None:
        """Replace an argument in the graph of a chunk."""
        i = self.names.index(name)
        if i < len(self.args):
            self.args[i] = value
        else:
            self.kwargs[name] = value

    def rows(self, x: Any) -> Rows | None:
        """Return where a value has rows, if it has."""
        mark = self.proof.marks[x] if isinstance(x, fx.Node) else None
        return mark if isinstance(mark, Rows) else None

    def of_first(self) -> Rows:
        """Return where the first argument has rows; no other may have some."""
        rows = self.rows(self.first)
        if rows is None or any(self.rows(a) for a in self.node.all_input_nodes if a is not self.first):
            raise self.mixed("is not known to keep rows of its other arguments apart")
        return rows

    def shape(self) -> tuple[int, ...]:
        """Return the shape of the node's first result."""
        value: Any = self.node.meta["val"]
        return tuple((value if isinstance(value, Tensor) else value[0]).shape)

    def keep(self, dim: int, block: int) -> Mark:
        return self.proof.keep(self.node, self.args, self.kwargs, Rows(dim, block))

    def sizes(self, dim: int, block: int) -> list[Any]:
        """Return the node's shape in a chunk, with rows along a dimension."""
        of_rows = self.proof.call(operator.mul, self.proof.count, block) if block > 1 else self.proof.count
        return [of_rows if i == dim else size for i, size in enumerate(self.shape())]

    def mixed(self, why: str) -> MixingError:
        return MixingError(self.node, why)


def _shape(x: Any) -> tuple[int, ...]:
    return tuple(_torch.traced_value(x).shape)


def _dims(given: Any, n: int) -> list[int]:
    """Return dimensions of a tensor that has n; none given means all."""
    if given is None or given == []:
        return list(range(n))
    return [d % n if n else 0 for d in ([given] if isinstance(given, int) else given)]


# Ops that go through the elements.


def _aligned(at: _At, shape: Sequence[int]) -> Rows:
    """Return where a result that is broadcast from the tensors among a node's arguments has rows, the same in all."""
    given = at.node.all_input_nodes
    found = {(len(shape) - len(_shape(a)) + r.dim, r.block) for a in given if (r := at.rows(a)) is not None}
    if len(found) > 1:
        raise at.mixed("pairs rows with other rows")
    ((dim, block),) = found
    if shape[dim] != at.proof.rows * block:
        raise at.mixed("pairs rows with what is not one")
    for a in given:
        if at.rows(a) is None:
            own = dim - (len(shape) - len(_shape(a)))
            if own >= 0 and _shape(a)[own] != 1:
                _narrow(at, a, own, block)
    return Rows(dim, block)


def _narrow(at: _At, a: fx.Node, dim: int, block: int) -> None:
    """Give a chunk its part of a value that was expanded to all rows."""
    if _torch.traced_value(a).stride(dim) != 0:
        raise at.mixed(f"pairs rows with the places of `{op_name(a)}`, which has none")
    size = at.proof.call(operator.mul, at.proof.count, block)
    part = at.proof.call(_aten.slice.Tensor, a, dim, 0, size)
    at.args = list(fx.node.map_arg(at.args, lambda b: part if b is a else b))


def _pointwise(at: _At) -> Mark:
    rows = _aligned(at, at.shape())
    return at.keep(rows.dim, rows.block)


def _loss(at: _At) -> Mark:
    """An elementwise loss, with its reduction."""
    shape = torch.broadcast_shapes(*(_shape(a) for a in at.node.all_input_nodes))
    rows = _aligned(at, shape)
    reduction = at.get("reduction")
    if reduction == 0:
        return at.keep(rows.dim, rows.block)
    at.put("reduction", 0)
    losses = at.proof.call(at.node.target, *at.args, **at.kwargs)
    return _summed(at, losses, None, 1 if reduction == 2 else torch.Size(shape).numel())


# Sums.


def _sum(at: _At) -> Mark:
    rows = at.of_first()
    shape = _shape(at.first)
    dims = _dims(at.get("dim") if "dim" in at.names else None, len(shape))
    if rows.dim not in dims:
        return _reduced(at, rows, dims)
    parts = 1
    for d in dims if op_name(at.node) == "mean" else ():
        parts *= shape[d]
    keepdim = "keepdim" in at.names and at.get("keepdim")
    return _summed(at, at.first, (dims, keepdim), parts)


def _summed(at: _At, x: fx.Node, dims: tuple[list[int], bool] | None, parts: int) -> Mark:
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


def _nll(at: _At) -> Mark:
    """The negative log-likelihood; its mean is over the weights of the targets, which are summed too."""
    scores, target, weight = at.get("self"), at.get("target"), at.get("weight")
    rows, reduction, ignored = at.rows(scores), at.get("reduction"), at.get("ignore_index")
    batched = len(_shape(scores)) == len(_shape(target)) + 1
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


def _product(at: _At) -> Mark:
    """A matrix product, perhaps of batches: rows of the left, columns of the right, or both summed over."""
    n = len(at.args)
    left, right = at.args[n - 2 :] if op_name(at.node) != "addmm" else at.args[1:]
    a, b = at.rows(left), at.rows(right)
    last = len(_shape(left)) - 1
    if op_name(at.node) == "addmm":
        bias = at.args[0]
        places = (0, *_shape(bias))[-2:] if len(_shape(bias)) > 1 else (1, 1)
        if at.rows(bias) is not None or (a is not None and places[0] != 1) or b is not None:
            raise at.mixed("is not known to keep the rows of what it adds apart")
    if a is not None and b is not None:
        if a.block == b.block and a.dim == last and b.dim == max(len(_shape(right)) - 2, 0):
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
    if batched or dim == (last if a is not None else max(len(_shape(right)) - 2, 0)):
        raise at.mixed("sums over rows with weights that are not theirs")
    return at.keep(dim, one.block)


# Ops along dimensions.


def _reduction(at: _At) -> Mark:
    rows = at.of_first()
    dims = _dims(at.get("dim") if "dim" in at.names else None, len(_shape(at.first)))
    if rows.dim in dims:
        raise at.mixed("reduces over rows, and is not a sum")
    return _reduced(at, rows, dims)


def _reduced(at: _At, rows: Rows, dims: Sequence[int]) -> Mark:
    gone = 0 if at.get("keepdim") else sum(d < rows.dim for d in dims)
    return at.keep(rows.dim - gone, rows.block)


def _along(at: _At) -> Mark:
    """An op along one or several dimensions, which keeps the others."""
    rows = at.of_first()
    given = at.get("dim" if "dim" in at.names else "dims")
    if rows.dim in _dims(given, len(_shape(at.first))):
        raise at.mixed("works across rows")
    return at.keep(rows.dim, rows.block)


def _gather(at: _At) -> Mark:
    """`gather` and `scatter`: what they take and write is in the same place of every other dimension."""
    parts = [a for a in at.node.all_input_nodes if _shape(a)]
    dim = _dims(at.get("dim"), len(_shape(at.get("index"))))[0]
    index = at.rows(at.get("index"))
    if index is not None and op_name(at.node) == "gather" and at.rows(at.first) is None and index.dim == dim:
        others = zip(_shape(at.first), at.shape(), strict=True)
        if all(d == dim or n >= m for d, (n, m) in enumerate(others)):
            return at.keep(dim, index.block)
    if index is None or index.dim == dim or any(at.rows(a) != index for a in parts):
        raise at.mixed("takes from other rows")
    return at.keep(index.dim, index.block)


def _taken(at: _At) -> Mark:
    """Places of a table that is the same for all rows, one for each index."""
    table, index = (at.get("weight"), at.get("indices")) if "weight" in at.names else (at.first, at.get("index"))
    rows = at.rows(index)
    if rows is None or at.rows(table) is not None:
        raise at.mixed("takes from other rows")
    if "sparse" in at.names and (at.get("sparse") or at.get("scale_grad_by_freq")):
        raise at.mixed("has a gradient that is sparse, or mixes rows")
    return at.keep(rows.dim, rows.block)


def _index_select(at: _At) -> Mark:
    dim = _dims(at.get("dim"), len(_shape(at.first)))[0]
    rows, index = at.rows(at.first), at.rows(at.get("index"))
    if index is not None and rows is None:
        return at.keep(dim, index.block)
    if index is None and rows is not None and rows.dim != dim:
        return at.keep(rows.dim, rows.block)
    raise at.mixed("takes from other rows")


def _indexed(at: _At) -> Mark:
    """`x[i, j, …]`: of a table, by indices with rows; or of rows, one after the other, by indices with rows."""
    indices: Any = at.args[1]
    rows = at.rows(at.first)
    if any(i is None for i in indices) or any(_torch.traced_value(i).dtype == torch.bool for i in indices):
        raise at.mixed("takes from other rows")
    shape = torch.broadcast_shapes(*(_shape(i) for i in indices))
    given = [i for i in indices if at.rows(i) is not None]
    if not given or any(at.rows(i) != Rows() or len(_shape(i)) != len(shape) for i in given):
        raise at.mixed("takes from other rows")
    if any(at.rows(i) is None and len(_shape(i)) == len(shape) and _shape(i)[0] != 1 for i in indices):
        raise at.mixed("takes from other rows")
    if rows is not None:
        if rows != Rows() or not _is_every(indices[0], at.proof.rows) or at.rows(indices[0]) is None:
            raise at.mixed("takes from other rows")
        every = at.proof.call(_aten.arange.default, at.proof.count, device=_torch.traced_value(at.first).device)
        at.args[1] = [every, *indices[1:]]
    return at.keep(0, 1)


def _is_every(node: fx.Node, rows: int) -> bool:
    """Whether a node gives the numbers of all rows, in order."""
    if op_name(node) != "arange":
        return False
    args = [a for a in node.args if not isinstance(a, bool)]
    return args in ([rows], [0, rows], [0, rows, 1])


# Views, and other ops that only put elements elsewhere.


def _view(at: _At) -> Mark:
    """The rows stay the outer ones of a dimension, after as many elements as before."""
    rows, shape, new = at.of_first(), _shape(at.first), at.shape()
    if "size" not in at.names and "shape" not in at.names:
        raise at.mixed("is not known to keep rows apart")
    ahead = torch.Size(shape[: rows.dim]).numel()
    inside = torch.Size(shape[rows.dim + 1 :]).numel() * rows.block
    for dim, size in enumerate(new):
        if torch.Size(new[:dim]).numel() == ahead and size % at.proof.rows == 0 and size:
            block = size // at.proof.rows
            if block * torch.Size(new[dim + 1 :]).numel() == inside:
                at.put("size" if "size" in at.names else "shape", at.sizes(dim, block))
                return at.keep(dim, block)
    raise at.mixed("puts rows together with what is around them")


def _expand(at: _At) -> Mark:
    rows = at.of_first()
    dim = rows.dim + len(at.shape()) - len(_shape(at.first))
    at.put("size", at.sizes(dim, rows.block))
    return at.keep(dim, rows.block)


def _permute(at: _At) -> Mark:
    rows, n = at.of_first(), len(_shape(at.first))
    order = list(range(n))
    if op_name(at.node) == "permute":
        order = _dims(at.get("dims"), n)
    else:
        i, j = (at.get("dim0") % n, at.get("dim1") % n) if op_name(at.node) == "transpose" else (0, n - 1)
        order[i], order[j] = order[j], order[i]
    return at.keep(order.index(rows.dim), rows.block)


def _unsqueeze(at: _At) -> Mark:
    rows = at.of_first()
    dim = at.get("dim") % len(at.shape())
    return at.keep(rows.dim + (dim <= rows.dim), rows.block)


def _squeeze(at: _At) -> Mark:
    """The dimensions that go are named: a chunk may be one row."""
    rows, shape = at.of_first(), _shape(at.first)
    dims = _dims(at.get("dim") if "dim" in at.names else None, len(shape))
    gone = [d for d in dims if shape[d] == 1]
    made = at.proof.call(_aten.squeeze.dims, at.first, gone)
    return at.proof.same_as(at.node, made, Rows(rows.dim - sum(d < rows.dim for d in gone), rows.block))


def _select(at: _At) -> Mark:
    rows = at.of_first()
    dim = _dims(at.get("dim"), len(_shape(at.first)))[0]
    if dim == rows.dim:
        raise at.mixed("takes single rows out")
    return at.keep(rows.dim - (dim < rows.dim), rows.block)


def _slice(at: _At) -> Mark:
    rows = at.of_first()
    if _dims(at.get("dim"), len(_shape(at.first)))[0] != rows.dim:
        return at.keep(rows.dim, rows.block)
    if at.shape() == _shape(at.first) and at.get("step") == 1:
        return at.proof.same_as(at.node, at.first, rows)
    raise at.mixed("takes a part of the rows")


def _joined(at: _At) -> Mark:
    parts: Any = at.first
    found = {at.rows(a) for a in parts}
    rows = next((r for r in found if r is not None), Rows())
    stacks = op_name(at.node) == "stack"
    dim = at.get("dim") % len(at.shape())
    if len(found) > 1 or (dim == rows.dim and not stacks):
        raise at.mixed("puts other things between rows")
    return at.keep(rows.dim + (stacks and dim <= rows.dim), rows.block)


def _pad(at: _At) -> Mark:
    rows = at.of_first()
    pad, behind = at.get("pad"), len(_shape(at.first)) - 1 - rows.dim
    if any(pad[2 * behind : 2 * behind + 2]):
        raise at.mixed("adds rows")
    return at.keep(rows.dim, rows.block)


def _layer_norm(at: _At) -> Mark:
    rows = at.of_first()
    if rows.dim >= len(_shape(at.first)) - len(at.get("normalized_shape")):
        raise at.mixed("normalises across rows")
    return at.keep(rows.dim, rows.block)


def _rules(rule: Callable[[_At], Mark], names: str) -> dict[str, Callable[[_At], Mark]]:
    return dict.fromkeys(names.split(), rule)


RULES = {
    **_rules(_pointwise, "_to_copy detach alias lift_fresh_copy lift_fresh zeros_like ones_like full_like masked_fill"),
    **_rules(_pointwise, "log_sigmoid_forward _prelu_kernel _conj"),
    **_rules(_loss, "mse_loss binary_cross_entropy binary_cross_entropy_with_logits smooth_l1_loss huber_loss"),
    **_rules(_loss, "soft_margin_loss"),
    **_rules(_sum, "sum mean"),
    **_rules(_nll, "nll_loss_forward nll_loss2d_forward"),
    **_rules(_product, "mm bmm mv dot addmm"),
    **_rules(_reduction, "amax amin max min argmax argmin prod any all var std var_mean logsumexp linalg_vector_norm"),
    **_rules(_reduction, "nansum norm median kthvalue"),
    **_rules(_along, "_softmax _log_softmax cumsum cumprod logcumsumexp cummax cummin sort topk flip glu"),
    **_rules(_along, "split split_with_sizes"),
    **_rules(_gather, "gather scatter scatter_add"),
    **_rules(_taken, "take embedding"),
    **_rules(_index_select, "index_select"),
    **_rules(_indexed, "index"),
    **_rules(_view, "view _unsafe_view reshape"),
    **_rules(_expand, "expand"),
    **_rules(_permute, "permute transpose t"),
    **_rules(_unsqueeze, "unsqueeze"),
    **_rules(_squeeze, "squeeze"),
    **_rules(_select, "select unbind"),
    **_rules(_slice, "slice"),
    **_rules(_joined, "cat stack"),
    **_rules(_pad, "constant_pad_nd"),
    **_rules(_layer_norm, "native_layer_norm"),
}
"""By the name of the op; besides, whatever ATen itself calls pointwise."""
