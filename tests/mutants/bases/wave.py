"""sin x with a backward and a jvp, which share a Function of the slope that has both, too."""

import torch
from torch.autograd import Function


class Wave(Function):
    """out = sin x."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * _Slope.apply(x)

    @staticmethod
    def jvp(ctx, tx):
        (x,) = ctx.saved_tensors
        return tx * _Slope.apply(x)


class _Slope(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.cos()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, gs):
        (x,) = ctx.saved_tensors
        return -gs * x.sin()

    @staticmethod
    def jvp(ctx, ts):
        (x,) = ctx.saved_tensors
        return -ts * x.sin()


def inputs():
    generator = torch.Generator().manual_seed(34)
    return (torch.randn(4, generator=generator, dtype=torch.float64).requires_grad_(),)
