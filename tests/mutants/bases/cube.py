"""x³ with a backward, a jvp and a generated vmap rule."""

import torch
from torch.autograd import Function


class Cube(Function):
    """out = x³."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g

    @staticmethod
    def jvp(ctx, tx):
        (x,) = ctx.saved_tensors
        return 3 * x * x * tx


def inputs():
    generator = torch.Generator().manual_seed(10)
    return (torch.randn(4, generator=generator, dtype=torch.float64).requires_grad_(),)
