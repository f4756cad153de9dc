"""scale x + shift with broadcasting, in the new style."""

import torch
from torch.autograd import Function


def fit(g, x):
    """Sum g over what broadcasting added to x, in x's dtype."""
    return g.sum_to_size(x.shape).to(x.dtype)


class Affine(Function):
    """out = scale x + shift."""

    @staticmethod
    def forward(x, scale, shift):
        return scale * x + shift

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, scale, shift = ctx.saved_tensors
        gx = gscale = gshift = None
        if ctx.needs_input_grad[0]:
            gx = fit(g * scale, x)
        if ctx.needs_input_grad[1]:
            gscale = fit(g * x, scale)
        if ctx.needs_input_grad[2]:
            gshift = fit(g, shift)
        return gx, gscale, gshift


def inputs():
    generator = torch.Generator().manual_seed(8)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    return draw(3, 3), draw(3), draw(3, 1)
