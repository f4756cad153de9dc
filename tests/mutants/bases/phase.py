"""sin(x + offset) with a constant of the module that the Function reads."""

import torch
from torch.autograd import Function

OFFSET = torch.tensor(0.3, dtype=torch.float64)


class Phase(Function):
    """out = sin(x + OFFSET)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x + OFFSET).sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x + OFFSET).cos()


def inputs():
    generator = torch.Generator().manual_seed(15)
    return (torch.randn(4, generator=generator, dtype=torch.float64).requires_grad_(),)
