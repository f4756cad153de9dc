"""Activations with a kink, and their gradient at it."""

import torch
from torch.autograd import Function

from ._control import Control, normal, uniform


class Relu(Function):
    """max(x, 0), with the mask taken from the output."""

    @staticmethod
    def forward(ctx, x):
        out = x.clamp(min=0)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * (out > 0)


class ReluMask(Function):
    """max(x, 0), saving the mask: an intermediate, but boolean, so without a derivative."""

    @staticmethod
    def forward(ctx, x):
        mask = x > 0
        ctx.save_for_backward(mask)
        return x.masked_fill(~mask, 0)

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return torch.where(mask, g, 0)


class LeakyRelu(Function):
    """x where it is positive, slope * x elsewhere."""

    @staticmethod
    def forward(x, slope):
        return torch.where(x > 0, x, slope * x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.slope = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, g, ctx.slope * g), None


class Abs(Function):
    """|x|."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.sign()


class Clamp(Function):
    """min(max(x, low), high), a bound of None being absent; the gradient is zero where it saturates."""

    @staticmethod
    def forward(ctx, x, low, high):
        ctx.low, ctx.high = low, high
        ctx.save_for_backward(x)
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        inside = torch.ones_like(x, dtype=torch.bool)
        if ctx.low is not None:
            inside = inside & (x >= ctx.low)
        if ctx.high is not None:
            inside = inside & (x <= ctx.high)
        return torch.where(inside, g, 0), None, None


class Hardswish(Function):
    """x * min(max(x + 3, 0), 6) / 6."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (x + 3).clamp(0, 6) / 6

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        slope = torch.where(x.abs() < 3, (2 * x + 3) / 6, (x > 0).to(x.dtype))
        return g * slope


class Elu(Function):
    """x where it is positive, alpha * (exp(x) - 1) elsewhere."""

    @staticmethod
    def forward(x, alpha):
        return torch.where(x > 0, x, alpha * torch.expm1(x.clamp(max=0)))

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.alpha = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.where(x > 0, 1, ctx.alpha * torch.exp(x.clamp(max=0))), None


class Prelu(Function):
    """x where it is positive, weight * x elsewhere, with a weight for each channel (dimension 1)."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.where(x > 0, x, Prelu.per_channel(weight, x) * x)

    @staticmethod
    def per_channel(weight, x):
        return weight.reshape(1, -1, *[1] * (x.dim() - 2))

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        gx = gweight = None
        if ctx.needs_input_grad[0]:
            gx = torch.where(x > 0, g, Prelu.per_channel(weight, x) * g)
        if ctx.needs_input_grad[1]:
            gweight = (g * x.clamp(max=0)).sum([d for d in range(x.dim()) if d != 1])
        return gx, gweight


CONTROLS = [
    Control("relu", Relu, lambda: (normal(3, 4),)),
    Control("relu-mask", ReluMask, lambda: (normal(3, 4),)),
    Control("leaky-relu", LeakyRelu, lambda: (normal(3, 4), 0.1)),
    Control("abs", Abs, lambda: (normal(3, 4),)),
    Control("clamp-two-sided", Clamp, lambda: (normal(4, 5), -0.7, 0.7)),
    Control("clamp-one-sided", Clamp, lambda: (normal(4, 5), None, 0.3)),
    Control("hardswish", Hardswish, lambda: (uniform(3, 5, low=-5.0, high=5.0),)),
    Control("elu", Elu, lambda: (normal(3, 4), 1.3)),
    Control("prelu", Prelu, lambda: (normal(2, 3, 4), uniform(3, low=0.1, high=0.4, seed=1))),
]
