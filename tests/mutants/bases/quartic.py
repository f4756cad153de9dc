"""x⁴ whose derivatives to order 3 are Functions of their own."""

import torch
from torch.autograd import Function


class Quartic(Function):
    """out = x⁴."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x * x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return _Slope.apply(x) * g


class _Slope(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return 4 * x * x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gs):
        (x,) = ctx.saved_tensors
        return _Curvature.apply(x) * gs


class _Curvature(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return 12 * x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gc):
        (x,) = ctx.saved_tensors
        return 24 * x * gc


def inputs():
    generator = torch.Generator().manual_seed(31)
    return (torch.randn(4, generator=generator, dtype=torch.float64).requires_grad_(),)
