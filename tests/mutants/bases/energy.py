"""The sum of squares over one dimension, with or without keeping it."""

import torch
from torch.autograd import Function


class Energy(Function):
    """out = (x²).sum(dim, keepdim)."""

    @staticmethod
    def forward(ctx, x, dim, keepdim):
        ctx.save_for_backward(x)
        ctx.dim, ctx.keepdim = dim, keepdim
        return (x * x).sum(dim, keepdim=keepdim)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if not ctx.keepdim and x.dim():
            g = g.unsqueeze(ctx.dim)
        gx = 2 * x * g
        return gx.to(x.dtype), None, None


def inputs():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(3, 4, generator=generator, dtype=torch.float64).requires_grad_(), 1, False
