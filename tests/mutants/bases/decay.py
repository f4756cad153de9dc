"""x exp(-rate y) with a Python float, computing only the gradients that are asked for."""

import torch
from torch.autograd import Function


def fit(g, x):
    """Sum g over what broadcasting added to x, in x's dtype."""
    return g.sum_to_size(x.shape).to(x.dtype)


class Decay(Function):
    """out = x exp(-rate y)."""

    @staticmethod
    def forward(ctx, x, y, rate):
        ctx.save_for_backward(x, y)
        ctx.rate = rate
        return x * (-rate * y).exp()

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        rate = ctx.rate
        gx = gy = None
        factor = (-rate * y).exp()
        if ctx.needs_input_grad[0]:
            gx = fit(g * factor, x)
        if ctx.needs_input_grad[1]:
            gy = fit(-rate * x * factor * g, y)
        return gx, gy, None


def inputs():
    generator = torch.Generator().manual_seed(13)

    def draw(*shape):
        return (0.2 + torch.rand(shape, generator=generator, dtype=torch.float64)).requires_grad_()

    return draw(5), draw(5), 0.7
