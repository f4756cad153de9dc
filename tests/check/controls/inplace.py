"""Functions that change an input in place, mark it dirty and return it.

Autograd refuses this on a leaf that requires grad: call them on a copy of the inputs.
"""

import torch
from torch.autograd import Function

from ._control import Control, normal

ON_A_COPY = "in place: call it on a copy of the inputs"


class ReluInPlace(Function):
    """max(x, 0), in place."""

    @staticmethod
    def forward(ctx, x):
        x.clamp_(min=0)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * (out > 0)


class SigmoidInPlace(Function):
    """sigmoid(x), in place."""

    @staticmethod
    def forward(x):
        return x.sigmoid_()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(*inputs)
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * out * (1 - out)


class ScaleInPlace(Function):
    """factor * x, in place, for a number."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        ctx.mark_dirty(x)
        return x.mul_(factor)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None


class AddInPlace(Function):
    """x + alpha * y, in place in x; y broadcasts."""

    @staticmethod
    def forward(ctx, x, y, alpha):
        ctx.alpha, ctx.y_shape = alpha, y.shape
        ctx.mark_dirty(x)
        return x.add_(y, alpha=alpha)

    @staticmethod
    def backward(ctx, g):
        gy = (ctx.alpha * g).sum_to_size(ctx.y_shape) if ctx.needs_input_grad[1] else None
        return g, gy, None


class NormalisedInPlace(Function):
    """x / |x| by rows, in place, and |x|: one output that is the input, and one that is not."""

    @staticmethod
    def forward(ctx, x):
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        x.div_(length)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x, length)
        return x, length

    @staticmethod
    def backward(ctx, g, g_length):
        unit, length = ctx.saved_tensors
        along = (g * unit).sum(-1, keepdim=True)
        return (g - along * unit) / length + g_length * unit


CONTROLS = [
    Control("relu-in-place", ReluInPlace, lambda: (normal(3, 4),), note=ON_A_COPY),
    Control("sigmoid-in-place", SigmoidInPlace, lambda: (normal(3, 4),), note=ON_A_COPY),
    Control("scale-in-place", ScaleInPlace, lambda: (normal(3, 4), 1.5), note=ON_A_COPY),
    Control("add-in-place", AddInPlace, lambda: (normal(3, 4), normal(4, seed=1), 0.5), note=ON_A_COPY),
    Control("normalised-in-place", NormalisedInPlace, lambda: (normal(3, 4),), note=ON_A_COPY),
]
