"""(sqrt(1 + x) - 1) / x without the difference, for x from -1 on."""

import torch
from torch.autograd import Function


class Gain(Function):
    """out = 1 / (1 + sqrt(1 + x))."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        root = torch.sqrt(1 + x)
        return 1 / (1 + root)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        root = torch.sqrt(1 + x)
        slope = -0.5 / root / (1 + root) / (1 + root)
        return g * slope


def inputs():
    generator = torch.Generator().manual_seed(22)
    return ((0.2 + torch.rand(6, generator=generator, dtype=torch.float64)).requires_grad_(),)
