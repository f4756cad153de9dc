"""Elements moved, repeated or padded: the gradient is moved back, and added where an element was repeated."""

import torch
import torch.nn.functional as F
from torch.autograd import Function

from ._control import Control, normal


class PixelShuffle1d(Function):
    """(n, c * r, l) to (n, c, l * r)."""

    @staticmethod
    def forward(ctx, x, r):
        ctx.r = r
        return x.unflatten(1, (-1, r)).permute(0, 1, 3, 2).flatten(2).clone()

    @staticmethod
    def backward(ctx, g):
        return g.unflatten(2, (-1, ctx.r)).permute(0, 1, 3, 2).flatten(1, 2), None


class ChannelShuffle(Function):
    """Channels dealt out from groups, one of each at a time."""

    @staticmethod
    def forward(x, groups):
        return x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2).clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.groups = inputs[1]

    @staticmethod
    def backward(ctx, g):
        return g.unflatten(1, (-1, ctx.groups)).transpose(1, 2).flatten(1, 2), None


class WindowPartition(Function):
    """(b, h, w, c) to (windows, size, size, c)."""

    @staticmethod
    def forward(ctx, x, size):
        ctx.shape, ctx.size = x.shape, size
        b, h, w, c = x.shape
        tiles = x.reshape(b, h // size, size, w // size, size, c)
        return tiles.permute(0, 1, 3, 2, 4, 5).reshape(-1, size, size, c).clone()

    @staticmethod
    def backward(ctx, g):
        b, h, w, c = ctx.shape
        tiles = g.reshape(b, h // ctx.size, w // ctx.size, ctx.size, ctx.size, c)
        return tiles.permute(0, 1, 3, 2, 4, 5).reshape(ctx.shape), None


class Roll(Function):
    """x rolled by a tuple of shifts along a tuple of dimensions."""

    @staticmethod
    def forward(x, shifts, dims):
        return x.roll(shifts, dims)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.shifts, ctx.dims = inputs

    @staticmethod
    def backward(ctx, g):
        return g.roll([-shift for shift in ctx.shifts], ctx.dims), None, None


class Pad(Function):
    """x padded with a number; the gradient is padded by as much less."""

    @staticmethod
    def forward(ctx, x, widths, value):
        ctx.widths = widths
        return F.pad(x, widths, value=value)

    @staticmethod
    def backward(ctx, g):
        return F.pad(g, [-width for width in ctx.widths]), None, None


class ReflectPad(Function):
    """The last dimension mirrored at both ends: an element near an end stands twice."""

    @staticmethod
    def positions(length, width, device):
        beyond = torch.arange(-width, length + width, device=device).abs()
        return (length - 1) - ((length - 1) - beyond).abs()

    @staticmethod
    def forward(ctx, x, width):
        if width >= x.shape[-1]:
            raise ValueError(f"cannot mirror {width} elements of {x.shape[-1]}")
        ctx.shape, ctx.width = x.shape, width
        return x[..., ReflectPad.positions(x.shape[-1], width, x.device)]

    @staticmethod
    def backward(ctx, g):
        positions = ReflectPad.positions(ctx.shape[-1], ctx.width, g.device)
        return g.new_zeros(ctx.shape).index_add(-1, positions, g), None


class UpsampleLinear(Function):
    """Twice the length by linear interpolation: 3/4 of the nearer element and 1/4 of the other."""

    @staticmethod
    def forward(ctx, x):
        return F.interpolate(x, scale_factor=2, mode="linear", align_corners=False)

    @staticmethod
    def backward(ctx, g):
        even, odd = g[..., 0::2], g[..., 1::2]
        from_right = torch.cat([even[..., 1:], odd[..., -1:]], -1)
        from_left = torch.cat([even[..., :1], odd[..., :-1]], -1)
        return 0.75 * (even + odd) + 0.25 * (from_left + from_right)


class UpsampleNearest(Function):
    """Each element of the last dimension repeated."""

    @staticmethod
    def forward(x, factor):
        return x.repeat_interleave(factor, dim=-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, g):
        return g.unflatten(-1, (-1, ctx.factor)).sum(-1), None


class Flip(Function):
    """The dimensions of a tuple in reverse order."""

    @staticmethod
    def forward(x, dims):
        return x.flip(dims)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.dims = inputs[1]

    @staticmethod
    def backward(ctx, g):
        return g.flip(ctx.dims), None


class TransposeCopy(Function):
    """x.mT, contiguous."""

    @staticmethod
    def forward(ctx, x):
        return x.mT.clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx, g):
        return g.mT


class Windows(Function):
    """Windows of the last dimension, which overlap."""

    @staticmethod
    def forward(ctx, x, size, step):
        ctx.shape, ctx.size, ctx.step = x.shape, size, step
        return x.unfold(-1, size, step).clone()

    @staticmethod
    def backward(ctx, g):
        places = torch.arange(ctx.shape[-1], device=g.device).unfold(0, ctx.size, ctx.step)
        return g.new_zeros(ctx.shape).index_add(-1, places.flatten(), g.flatten(-2)), None, None


class Stack(Function):
    """Any number of tensors in a new first dimension."""

    @staticmethod
    def forward(*parts):
        return torch.stack(parts)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g.unbind(0)


class SymmetricFromVector(Function):
    """A symmetric matrix from its lower triangle, packed: an element off the diagonal stands twice."""

    @staticmethod
    def places(n, device):
        row, column = torch.tril_indices(n, n, device=device)
        packed = torch.zeros(n, n, dtype=torch.long, device=device)
        packed[row, column] = packed[column, row] = torch.arange(len(row), device=device)
        return packed

    @staticmethod
    def forward(ctx, packed, n):
        ctx.n = n
        return packed[..., SymmetricFromVector.places(n, packed.device)]

    @staticmethod
    def backward(ctx, g):
        places = SymmetricFromVector.places(ctx.n, g.device).flatten()
        zeros = g.new_zeros(*g.shape[:-2], ctx.n * (ctx.n + 1) // 2)
        return zeros.index_add(-1, places, g.flatten(-2)), None


CONTROLS = [
    Control("pixel-shuffle-1d", PixelShuffle1d, lambda: (normal(2, 6, 3), 2)),
    Control("channel-shuffle", ChannelShuffle, lambda: (normal(2, 6, 2), 3)),
    Control("window-partition", WindowPartition, lambda: (normal(1, 4, 6, 2), 2)),
    Control("roll", Roll, lambda: (normal(3, 4), (1, -2), (0, 1))),
    Control("pad", Pad, lambda: (normal(2, 3), (1, 2), 0.5)),
    Control("reflect-pad", ReflectPad, lambda: (normal(2, 5), 2)),
    Control("upsample-linear", UpsampleLinear, lambda: (normal(2, 3, 4),)),
    Control("upsample-nearest", UpsampleNearest, lambda: (normal(2, 3), 3)),
    Control("flip", Flip, lambda: (normal(2, 3, 4), (0, 2))),
    Control("transpose-copy", TransposeCopy, lambda: (normal(2, 3, 4),)),
    Control("windows", Windows, lambda: (normal(2, 9), 4, 2)),
    Control("stack", Stack, lambda: (normal(2, 3), normal(2, 3, seed=1), normal(2, 3, seed=2))),
    Control("symmetric-from-vector", SymmetricFromVector, lambda: (normal(2, 6), 3)),
]
