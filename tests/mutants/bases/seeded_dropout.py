"""Dropout whose mask is drawn again in the backward, from a seed."""

import torch
from torch.autograd import Function


class SeededDropout(Function):
    """out = 2 x where a mask drawn from a seed is set, 0 elsewhere."""

    @staticmethod
    def forward(ctx, x, seed):
        ctx.seed = seed
        generator = torch.Generator().manual_seed(seed)
        kept = torch.rand(x.shape, generator=generator) > 0.5
        return 2 * x * kept

    @staticmethod
    def backward(ctx, g):
        again = torch.Generator().manual_seed(ctx.seed)
        mask = torch.rand(g.shape, generator=again) > 0.5
        return 2 * g * mask, None


def inputs():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 4, generator=generator, dtype=torch.float64).requires_grad_(), 3
