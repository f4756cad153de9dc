"""Rules for ops along dimensions, for indices, and for views: where a value has rows after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from pullback import _torch
from pullback.graph.lines import op_name
from pullback.graph.row_node import At, dims_of, shape_of
from pullback.graph.rows import Mark, Rows

_aten = torch.ops.aten
Rule = Callable[[At], Mark]


def rules(rule: Rule, names: str) -> dict[str, Rule]:
    """Return a rule by the names of its ops."""
    return dict.fromkeys(names.split(), rule)


# Ops along dimensions.


def _reduction(at: At) -> Mark:
    rows = at.of_first()
    dims = dims_of(at.get("dim") if "dim" in at.names else None, len(shape_of(at.first)))
    if rows.dim in dims:
        raise at.mixed("reduces over rows, and is not a sum")
    return reduced(at, rows, dims)


def reduced(at: At, rows: Rows, dims: Sequence[int]) -> Mark:
    """Return the mark of a reduction over dimensions other than that of the rows."""
    gone = 0 if at.get("keepdim") else sum(d < rows.dim for d in dims)
    return at.keep(rows.dim - gone, rows.block)


def _along(at: At) -> Mark:
    """An op along one or several dimensions, which keeps the others."""
    rows = at.of_first()
    given = at.get("dim" if "dim" in at.names else "dims")
    if rows.dim in dims_of(given, len(shape_of(at.first))):
        raise at.mixed("works across rows")
    return at.keep(rows.dim, rows.block)


def _gather(at: At) -> Mark:
    """`gather` and `scatter`: index and source agree in every other dimension."""
    parts = [a for a in at.node.all_input_nodes if shape_of(a)]
    dim = dims_of(at.get("dim"), len(shape_of(at.get("index"))))[0]
    index = at.rows(at.get("index"))
    if index is not None and op_name(at.node) == "gather" and at.rows(at.first) is None and index.dim == dim:
        others = zip(shape_of(at.first), at.shape(), strict=True)
        if all(d == dim or n >= m for d, (n, m) in enumerate(others)):
            return at.keep(dim, index.block)
    if index is None or index.dim == dim or any(at.rows(a) != index for a in parts):
        raise at.mixed("takes from other rows")
    return at.keep(index.dim, index.block)


def _taken(at: At) -> Mark:
    """Places of a table that is the same for all rows, one for each index."""
    table, index = (at.get("weight"), at.get("indices")) if "weight" in at.names else (at.first, at.get("index"))
    rows = at.rows(index)
    if rows is None or at.rows(table) is not None:
        raise at.mixed("takes from other rows")
    if "sparse" in at.names and (at.get("sparse") or at.get("scale_grad_by_freq")):
        raise at.mixed("has a gradient that is sparse, or mixes rows")
    return at.keep(rows.dim, rows.block)


def _index_select(at: At) -> Mark:
    dim = dims_of(at.get("dim"), len(shape_of(at.first)))[0]
    rows, index = at.rows(at.first), at.rows(at.get("index"))
    if index is not None and rows is None:
        return at.keep(dim, index.block)
    if index is None and rows is not None and rows.dim != dim:
        return at.keep(rows.dim, rows.block)
    raise at.mixed("takes from other rows")


def _indexed(at: At) -> Mark:
    """`x[i, j, …]`: of a table, by indices with rows; or of rows, one after the other, by indices with rows."""
    indices: Any = at.args[1]
    rows = at.rows(at.first)
    if any(i is None for i in indices) or any(_torch.traced_value(i).dtype == torch.bool for i in indices):
        raise at.mixed("takes from other rows")
    shape = torch.broadcast_shapes(*(shape_of(i) for i in indices))
    given = [i for i in indices if at.rows(i) is not None]
    if not given or any(at.rows(i) != Rows() or len(shape_of(i)) != len(shape) for i in given):
        raise at.mixed("takes from other rows")
    if any(at.rows(i) is None and len(shape_of(i)) == len(shape) and shape_of(i)[0] != 1 for i in indices):
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


def _view(at: At) -> Mark:
    """The rows stay the outer ones of a dimension, after as many elements as before."""
    rows, shape, new = at.of_first(), shape_of(at.first), at.shape()
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


def _expand(at: At) -> Mark:
    rows = at.of_first()
    dim = rows.dim + len(at.shape()) - len(shape_of(at.first))
    at.put("size", at.sizes(dim, rows.block))
    return at.keep(dim, rows.block)


def _permute(at: At) -> Mark:
    rows, n = at.of_first(), len(shape_of(at.first))
    order = list(range(n))
    if op_name(at.node) == "permute":
        order = dims_of(at.get("dims"), n)
    else:
        i, j = (at.get("dim0") % n, at.get("dim1") % n) if op_name(at.node) == "transpose" else (0, n - 1)
        order[i], order[j] = order[j], order[i]
    return at.keep(order.index(rows.dim), rows.block)


def _unsqueeze(at: At) -> Mark:
    rows = at.of_first()
    dim = at.get("dim") % len(at.shape())
    return at.keep(rows.dim + (dim <= rows.dim), rows.block)


def _squeeze(at: At) -> Mark:
    """The dimensions that go are named: a chunk may be one row."""
    rows, shape = at.of_first(), shape_of(at.first)
    dims = dims_of(at.get("dim") if "dim" in at.names else None, len(shape))
    gone = [d for d in dims if shape[d] == 1]
    made = at.proof.call(_aten.squeeze.dims, at.first, gone)
    return at.proof.same_as(at.node, made, Rows(rows.dim - sum(d < rows.dim for d in gone), rows.block))


def _select(at: At) -> Mark:
    rows = at.of_first()
    dim = dims_of(at.get("dim"), len(shape_of(at.first)))[0]
    if dim == rows.dim:
        raise at.mixed("takes single rows out")
    return at.keep(rows.dim - (dim < rows.dim), rows.block)


def _slice(at: At) -> Mark:
    rows = at.of_first()
    if dims_of(at.get("dim"), len(shape_of(at.first)))[0] != rows.dim:
        return at.keep(rows.dim, rows.block)
    if at.shape() == shape_of(at.first) and at.get("step") == 1:
        return at.proof.same_as(at.node, at.first, rows)
    raise at.mixed("takes a part of the rows")


def _joined(at: At) -> Mark:
    parts: Any = at.first
    found = {at.rows(a) for a in parts}
    rows = next((r for r in found if r is not None), Rows())
    stacks = op_name(at.node) == "stack"
    dim = at.get("dim") % len(at.shape())
    if len(found) > 1 or (dim == rows.dim and not stacks):
        raise at.mixed("puts other things between rows")
    return at.keep(rows.dim + (stacks and dim <= rows.dim), rows.block)


def _pad(at: At) -> Mark:
    rows = at.of_first()
    pad, behind = at.get("pad"), len(shape_of(at.first)) - 1 - rows.dim
    if any(pad[2 * behind : 2 * behind + 2]):
        raise at.mixed("adds rows")
    return at.keep(rows.dim, rows.block)


def _layer_norm(at: At) -> Mark:
    rows = at.of_first()
    if rows.dim >= len(shape_of(at.first)) - len(at.get("normalized_shape")):
        raise at.mixed("normalises across rows")
    return at.keep(rows.dim, rows.block)


PLACES = {
    **rules(_reduction, "amax amin max min argmax argmin prod any all var std var_mean logsumexp linalg_vector_norm"),
    **rules(_reduction, "nansum norm median kthvalue"),
    **rules(_along, "_softmax _log_softmax cumsum cumprod logcumsumexp cummax cummin sort topk flip glu"),
    **rules(_along, "split split_with_sizes"),
    **rules(_gather, "gather scatter scatter_add"),
    **rules(_taken, "take embedding"),
    **rules(_index_select, "index_select"),
    **rules(_indexed, "index"),
    **rules(_view, "view _unsafe_view reshape"),
    **rules(_expand, "expand"),
    **rules(_permute, "permute transpose t"),
    **rules(_unsqueeze, "unsqueeze"),
    **rules(_squeeze, "squeeze"),
    **rules(_select, "select unbind"),
    **rules(_slice, "slice"),
    **rules(_joined, "cat stack"),
    **rules(_pad, "constant_pad_nd"),
    **rules(_layer_norm, "native_layer_norm"),
}
"""By the name of the op."""
