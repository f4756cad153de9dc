"""Gathers, scatters and masks; indices may repeat, and then their gradients add up."""

import torch
from torch.autograd import Function

from ._control import Control, flags, integers, normal, uniform


class Gather(Function):
    """x.gather(dim, index)."""

    @staticmethod
    def forward(ctx, x, dim, index):
        ctx.shape, ctx.dim = x.shape, dim
        ctx.save_for_backward(index)
        return x.gather(dim, index)

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter_add(ctx.dim, index, g), None, None


class IndexAdd(Function):
    """x with rows of source added at index."""

    @staticmethod
    def forward(ctx, x, index, source):
        ctx.save_for_backward(index)
        return x.index_add(0, index, source)

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return g, None, g.index_select(0, index)


class SegmentSum(Function):
    """Rows summed by segment."""

    @staticmethod
    def forward(rows, segment, count):
        return rows.new_zeros(count, *rows.shape[1:]).index_add(0, segment, rows)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, g):
        (segment,) = ctx.saved_tensors
        return g[segment], None, None


class SegmentMean(Function):
    """Rows averaged by segment; an empty segment gives 0."""

    @staticmethod
    def forward(ctx, rows, segment, count):
        sizes = torch.bincount(segment, minlength=count).clamp(min=1)
        ctx.save_for_backward(segment, sizes)
        sums = rows.new_zeros(count, *rows.shape[1:]).index_add(0, segment, rows)
        return sums / sizes[:, None].to(rows.dtype)

    @staticmethod
    def backward(ctx, g):
        segment, sizes = ctx.saved_tensors
        return (g / sizes[:, None].to(g.dtype)).index_select(0, segment), None, None


class Embedding(Function):
    """Rows of a table, looked up by integers of any shape."""

    @staticmethod
    def forward(ctx, indices, table):
        ctx.rows = table.shape[0]
        ctx.save_for_backward(indices)
        return table[indices]

    @staticmethod
    def backward(ctx, g):
        (indices,) = ctx.saved_tensors
        width = g.shape[-1]
        rows = g.reshape(indices.numel(), width)
        return None, g.new_zeros(ctx.rows, width).index_add(0, indices.reshape(-1), rows)


class MaskedFill(Function):
    """x with a number where the mask is set."""

    @staticmethod
    def forward(x, mask, value):
        return x.masked_fill(mask, value)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g.masked_fill(mask, 0), None, None


class Where(Function):
    """x where the condition is set, y elsewhere; all three broadcast."""

    @staticmethod
    def forward(ctx, condition, x, y):
        ctx.shapes = x.shape, y.shape
        ctx.save_for_backward(condition)
        return torch.where(condition, x, y)

    @staticmethod
    def backward(ctx, g):
        (condition,) = ctx.saved_tensors
        x_shape, y_shape = ctx.shapes
        gx = torch.where(condition, g, 0).sum_to_size(x_shape) if ctx.needs_input_grad[1] else None
        gy = torch.where(condition, 0, g).sum_to_size(y_shape) if ctx.needs_input_grad[2] else None
        return None, gx, gy


class Take(Function):
    """Elements of x, counted as if it were flat."""

    @staticmethod
    def forward(x, index):
        return torch.take(x, index)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, index = inputs
        ctx.shape = x.shape
        ctx.save_for_backward(index)

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        flat = g.new_zeros(ctx.shape.numel()).index_add(0, index.reshape(-1), g.reshape(-1))
        return flat.reshape(ctx.shape), None


class SelectColumns(Function):
    """The columns in a list of positions, which may repeat."""

    @staticmethod
    def forward(ctx, x, positions):
        ctx.shape, ctx.positions = x.shape, positions
        return x[..., positions]

    @staticmethod
    def backward(ctx, g):
        index = torch.tensor(ctx.positions, device=g.device)
        return g.new_zeros(ctx.shape).index_add(-1, index, g), None


class MaskedSelect(Function):
    """The elements of x where the mask is set: the size of the output depends on the data."""

    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(mask)
        return x[mask]

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g.new_zeros(mask.shape).masked_scatter(mask, g), None


class Tril(Function):
    """The lower triangle of matrices, from a diagonal on."""

    @staticmethod
    def forward(x, diagonal):
        return x.tril(diagonal)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.diagonal = inputs[1]

    @staticmethod
    def backward(ctx, g):
        return g.tril(ctx.diagonal), None


class LookUp(Function):
    """A table read at real positions, linear between its entries, and extended beyond them."""

    @staticmethod
    def cell(position, table):
        left = position.floor().long().clamp(0, table.shape[0] - 2)
        return left, position - left

    @staticmethod
    def forward(ctx, position, table):
        if len(table) < 2:
            raise ValueError(f"the table needs two entries; got {len(table)}")
        ctx.save_for_backward(position, table)
        left, fraction = LookUp.cell(position, table)
        return table[left] + fraction * (table[left + 1] - table[left])

    @staticmethod
    def backward(ctx, g):
        position, table = ctx.saved_tensors
        left, fraction = LookUp.cell(position, table)
        gposition = gtable = None
        if ctx.needs_input_grad[0]:
            gposition = g * (table[left + 1] - table[left])
        if ctx.needs_input_grad[1]:
            left = left.reshape(-1)
            gtable = torch.zeros_like(table).index_add(0, left, (g * (1 - fraction)).reshape(-1))
            gtable = gtable.index_add(0, left + 1, (g * fraction).reshape(-1))
        return gposition, gtable


CONTROLS = [
    Control("gather", Gather, lambda: (normal(3, 4), 1, integers(3, 6, high=4))),
    Control("index-add", IndexAdd, lambda: (normal(3, 4), integers(5, high=3), normal(5, 4, seed=1))),
    Control("segment-sum", SegmentSum, lambda: (normal(6, 2), integers(6, high=3), 4)),
    Control("segment-mean", SegmentMean, lambda: (normal(6, 2), integers(6, high=3), 4)),
    Control("embedding", Embedding, lambda: (integers(2, 4, high=3), normal(5, 3))),
    Control("masked-fill", MaskedFill, lambda: (normal(3, 4), flags(3, 4), -1.0)),
    Control("where", Where, lambda: (flags(3, 4), normal(3, 4), normal(1, 4, seed=1))),
    Control("take", Take, lambda: (normal(3, 4), integers(2, 5, high=12))),
    Control("select-columns", SelectColumns, lambda: (normal(3, 4), [0, 2, 2, 1])),
    Control("masked-select", MaskedSelect, lambda: (normal(3, 4), flags(3, 4))),
    Control("tril", Tril, lambda: (normal(2, 3, 4), 1)),
    Control("look-up", LookUp, lambda: (uniform(2, 5, low=-0.5, high=4.5), normal(5, seed=1))),
]
