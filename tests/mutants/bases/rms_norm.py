"""Root-mean-square normalisation over the last dimension, recomputed in backward."""

import torch
from torch.autograd import Function


class RMSNorm(Function):
    """out = w x / sqrt(mean(x²) + eps): (..., n), (n,) -> (..., n)."""

    @staticmethod
    def forward(ctx, x, w, eps):
        inverse = ((x * x).mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, w)
        ctx.eps = eps
        return w * (x * inverse)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        inverse = ((x * x).mean(-1, keepdim=True) + ctx.eps).rsqrt()
        unit = x * inverse
        gx = gw = None
        if ctx.needs_input_grad[0]:
            wg = w * g
            gx = inverse * (wg - unit * (wg * unit).mean(-1, keepdim=True))
            gx = gx.to(x.dtype)
        if ctx.needs_input_grad[1]:
            gw = g * unit
            gw = gw.sum_to_size(w.shape).to(w.dtype)
        return gx, gw, None


def inputs():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    w = torch.randn(4, generator=generator, dtype=torch.float64)
    return x.requires_grad_(), w.requires_grad_(), 1e-4
